"""Applies ``dataplane.budget`` to one step of the engine."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from dataplane.admission import Admission
from dataplane.budget import Pace, PrefillCap, RunningPrefill, WaitingPrompts, plan_prefill
from dataplane.intake import Intake
from dataplane.meter import Meter
from dataplane.progress import LiveRequest
from dataplane.room import Room
from dataplane.step_time import StepTimeModel
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, WeightTable

PACES_INTERVAL_S = 0.02
"""How old what is known of the running decodes' paces may get: looking costs O(running)."""

CACHE_INTERVAL_S = 0.1
"""How old what is known of a head's cached prefix may get: looking costs O(its blocks)."""


class PromptRequest(LiveRequest, Protocol):
    """What is looked at of a running request whose prompt is not through."""

    num_tokens: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What a step may compute.

    Attributes:
        tokens: in all; None: as many as the engine's configuration allows.
        prefill_tokens: by request id, of running prompts; others are not limited.
    """

    tokens: int | None = None
    prefill_tokens: Mapping[str, int] = field(default_factory=dict)


UNLIMITED = StepPlan()


class _Cached(NamedTuple):
    """What of a head was found in the prefix cache, and until when that counts."""

    request_id: str
    tokens: int
    until_s: float


def nothing_cached(_ticket: Ticket) -> int:
    """Of an engine without a prefix cache."""
    return 0


class Shaping:
    """All calls come from the scheduler's thread.

    Args:
        tokens_per_decode: of a step's tokens, for a sequence that decodes: one and the
            drafted ones.
        cached_tokens: of a waiting request, that the prefix cache spares.
    """

    def __init__(
        self,
        *,
        tokens_per_decode: int,
        admission: Admission,
        intake: Intake,
        meter: Meter,
        cached_tokens: Callable[[Ticket], int] = nothing_cached,
    ) -> None:
        self.cap = PrefillCap()
        self._paces_due_s = 0.0
        self._earliest_due_s: dict[float, float] = {}
        self._tokens_per_decode = tokens_per_decode
        self._admission = admission
        self._intake = intake
        self._meter = meter
        self._cached_tokens = cached_tokens
        self._cached: dict[str, _Cached] = {}

    def plan(
        self,
        prefills: Sequence[PromptRequest],
        running: Sequence[LiveRequest],
        heads: Iterable[tuple[Ticket, ClassPolicy]],
        *,
        room: Room,
        table: WeightTable,
        model: StepTimeModel | None,
        now_s: float,
    ) -> StepPlan:
        """How the next step's tokens are spent.

        Args:
            prefills: those of ``running`` whose prompts are not through.
            running: all requests on the engine.
            heads: of the classes in which something waits, in the order in which they go,
                without those that vLLM will not let start.
            room: what the engine has left.
            table: in force.
            model: of the time of a step; None: not known yet.
            now_s: monotonic.
        """
        paces = self._paces(running, table, now_s)
        if not prefills and not paces:
            return UNLIMITED
        decoding = len(running) - len(prefills)
        full_tokens = max(0, room.step_tokens - decoding * self._tokens_per_decode)
        waiting = self._waiting(heads, room, len(running), now_s) if room.slots_free > 0 else []
        own = [self._running_prefill(request, table, room, now_s) for request in prefills]
        prefill_tokens = self.cap.tokens(
            model=model,
            paces=paces,
            decoding=decoding,
            kv_tokens=room.kv_tokens,
            full_tokens=full_tokens,
            demand_tokens=sum(one.tokens for one in own) + self._meter.waiting_prompt_tokens,
            now_s=now_s,
        )
        plan = plan_prefill(budget_tokens=prefill_tokens, prefills=own, waiting=waiting)
        if prefill_tokens >= full_tokens:
            return StepPlan(prefill_tokens=plan)
        return StepPlan(room.step_tokens - full_tokens + prefill_tokens, plan)

    def _waiting(
        self,
        heads: Iterable[tuple[Ticket, ClassPolicy]],
        room: Room,
        running: int,
        now_s: float,
    ) -> list[WaitingPrompts]:
        """What those who wait will take of this step, by class.

        What is left to them and not taken is lost, so only those count that will start:
        the heads in the order in which they go, as long as slots and blocks are free for
        them, and in slots that are left, as many more as their classes have. What the prefix
        cache holds of a head is not computed; of those behind it, it is taken to hold as much.
        """
        slots, blocks = room.slots_free, room.blocks_free
        wanted: dict[str, WaitingPrompts] = {}
        fresh: dict[str, tuple[int, float]] = {}  # the head's tokens, and how many of them count
        for ticket, policy in heads:
            if not slots:
                break
            if self._admission.could_start(
                ticket, policy, free_blocks=blocks, running=running, now_s=now_s
            ):
                slots -= 1
                blocks -= self._admission.need_blocks(ticket)
                whole_tokens = ticket.prompt_tokens + ticket.generated_tokens
                tokens = max(1, whole_tokens - self._found_cached(ticket, now_s))
                fresh[ticket.task_class] = whole_tokens, tokens / whole_tokens
                wanted[ticket.task_class] = WaitingPrompts(
                    ticket.task_class,
                    urgency(ticket, policy, now_s),
                    min(tokens, room.chunk_tokens),
                )
        for one in wanted.values() if slots else ():
            head_tokens, ratio = fresh[one.task_class]
            more, tokens = self._meter.tally(one.task_class).behind_head(
                min(head_tokens, room.chunk_tokens), slots
            )
            slots -= more
            tokens = min(math.ceil(tokens * ratio), more * room.chunk_tokens)
            wanted[one.task_class] = one._replace(tokens=one.tokens + tokens)
        return list(wanted.values())

    def _found_cached(self, ticket: Ticket, now_s: float) -> int:
        last = self._cached.get(ticket.task_class)
        if last is None or last.request_id != ticket.request_id or now_s >= last.until_s:
            tokens = self._cached_tokens(ticket)
            last = _Cached(ticket.request_id, tokens, now_s + CACHE_INTERVAL_S)
            self._cached[ticket.task_class] = last
        return last.tokens

    def _running_prefill(
        self, request: PromptRequest, table: WeightTable, room: Room, now_s: float
    ) -> RunningPrefill:
        ticket = self._intake.ticket_of(request)
        return RunningPrefill(
            request_id=request.request_id,
            task_class=ticket.task_class,
            weight=urgency(ticket, table.policy(ticket.task_class), now_s),
            tokens=min(request.num_tokens - request.num_computed_tokens, room.chunk_tokens),
            admission=ticket.admission,
        )

    def _paces(
        self, running: Sequence[LiveRequest], table: WeightTable, now_s: float
    ) -> list[Pace]:
        """The worst of each objective, of the decodes of protected classes that have one."""
        if not table.paced or table.paced.keys().isdisjoint(self._meter.running_classes()):
            return []
        if now_s >= self._paces_due_s:
            self._paces_due_s = now_s + PACES_INTERVAL_S
            self._earliest_due_s = self._find_earliest_due(running, table)
        return [Pace(tpot_s, due_s - now_s) for tpot_s, due_s in self._earliest_due_s.items()]

    def _find_earliest_due(
        self, running: Sequence[LiveRequest], table: WeightTable
    ) -> dict[float, float]:
        """By objective: when the latest token of the decode furthest behind was due."""
        tickets, paced = self._intake.tickets, table.paced
        earliest_s: dict[float, float] = {}
        for request in running:
            ticket = tickets.get(request.request_id)
            if ticket and ticket.first_token_s is not None and ticket.task_class in paced:
                tpot_s = paced[ticket.task_class]
                due_s = ticket.first_token_s + (request.num_output_tokens - 1) * tpot_s
                earliest_s[tpot_s] = min(due_s, earliest_s.get(tpot_s, due_s))
        return earliest_s


def urgency(ticket: Ticket, policy: ClassPolicy, now_s: float) -> float:
    """What a prompt's share of a step is in proportion to: ``w_k (1 + age_k / slo_k)``.

    The weight alone would let light prompts crawl for as long as heavy ones keep coming,
    though the queue let them in by their age; the age alone would give those that just came
    nothing.
    """
    return policy.weight + policy.gain_per_s * max(0.0, now_s - ticket.arrived_s)
