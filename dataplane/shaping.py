"""Applies ``dataplane.budget`` to one step of the engine."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dataplane.admission import Admission
from dataplane.budget import Pace, PrefillCap, RunningPrefill, WaitingPrompts, plan_prefill
from dataplane.intake import Intake
from dataplane.meter import Meter
from dataplane.progress import LiveRequest
from dataplane.room import Room
from dataplane.step_time import StepTimeModel
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, Tier, WeightTable


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


class Shaping:
    """All calls come from the scheduler's thread.

    Args:
        tokens_per_decode: of a step's tokens, for a sequence that decodes: one and the
            drafted ones.
    """

    def __init__(
        self, *, tokens_per_decode: int, admission: Admission, intake: Intake, meter: Meter
    ) -> None:
        self.cap = PrefillCap()
        self._tokens_per_decode = tokens_per_decode
        self._admission = admission
        self._intake = intake
        self._meter = meter

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
            heads: of the classes in which something waits.
            room: what the engine has left.
            table: in force.
            model: of the time of a step; None: not known yet.
            now_s: monotonic.
        """
        decoding = len(running) - len(prefills)
        full_tokens = max(0, room.step_tokens - decoding * self._tokens_per_decode)
        waiting = self._waiting(heads, room, len(running), now_s) if room.slots_free > 0 else []
        if not prefills and not waiting:
            return UNLIMITED
        own = [self._running_prefill(request, table, room.chunk_tokens) for request in prefills]
        prefill_tokens = self.cap.tokens(
            model=model,
            paces=self._paces(running, table, now_s),
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
        """The classes of the heads that may start, heaviest first, as many as slots are free."""
        able = [
            WaitingPrompts(
                ticket.task_class,
                policy.weight,
                self._meter.tally(ticket.task_class).waiting_chunk_tokens(room.chunk_tokens),
            )
            for ticket, policy in heads
            if self._admission.could_start(
                ticket, policy, free_blocks=room.blocks_free, running=running, now_s=now_s
            )
        ]
        able.sort(key=lambda one: -one.weight)
        return able[: room.slots_free]

    def _running_prefill(
        self, request: PromptRequest, table: WeightTable, chunk_tokens: int
    ) -> RunningPrefill:
        ticket = self._intake.ticket_of(request)
        return RunningPrefill(
            request_id=request.request_id,
            task_class=ticket.task_class,
            weight=table.policy(ticket.task_class).weight,
            tokens=min(request.num_tokens - request.num_computed_tokens, chunk_tokens),
            admission=ticket.admission,
        )

    def _paces(
        self, running: Sequence[LiveRequest], table: WeightTable, now_s: float
    ) -> Iterator[Pace]:
        """Of the decodes of protected classes that have an objective for their pace."""
        objectives = {
            name: policy.slo.tpot_s
            for name, policy in table.policies.items()
            if policy.slo.tpot_s is not None and policy.tier <= Tier.P1
        }
        if not any(name in objectives for name in self._meter.running_classes()):
            return
        tickets = self._intake.tickets
        for request in running:
            ticket = tickets.get(request.request_id)
            if ticket is None or ticket.first_token_s is None:
                continue
            tpot_s = objectives.get(ticket.task_class)
            if tpot_s is not None:
                yield Pace.of(tpot_s, ticket.first_token_s, request.num_output_tokens, now_s)
