"""Finds the running requests that give way to a waiting one; the scheduler then acts.

``dataplane.preemption`` holds the rules. Here the engine's state is put into its terms, and
the search is kept cheap: it looks at the heads of the queues fifty times a second, and
at the running requests only for a head that cannot wait.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dataplane.admission import Admission
from dataplane.config import PreemptionSettings
from dataplane.intake import Intake
from dataplane.preemption import RunningRequest, WaitingHead, WeightPreemption
from dataplane.progress import LiveRequest
from dataplane.room import Room
from dataplane.step_time import StepTimeModel
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, Tier, WeightTable

LOOK_EVERY_S = 0.02
AFTER_REFUSAL_S = 0.1
"""Looking at all that runs costs something, and what was refused just now is so again."""

Head = tuple[Ticket, ClassPolicy]


@dataclass(frozen=True, slots=True)
class Displacement:
    """These give way to that one.

    Attributes:
        beneficiary: request id of the head, which goes next.
    """

    beneficiary: str
    victims: tuple[LiveRequest, ...]


class Displacer:
    """All calls come from the scheduler's thread.

    Args:
        may_go: whether the blocks of a running request can be taken away now.
        blocks_of: how many would come free.
    """

    def __init__(
        self,
        settings: PreemptionSettings,
        *,
        admission: Admission,
        intake: Intake,
        may_go: Callable[[LiveRequest], bool],
        blocks_of: Callable[[LiveRequest], int],
    ) -> None:
        self.preemption = WeightPreemption(settings)
        self._settings = settings
        self._admission = admission
        self._intake = intake
        self._may_go = may_go
        self._blocks_of = blocks_of
        self._due_s = 0.0

    def due(self, now_s: float) -> bool:
        """Whether ``displace`` is worth asking."""
        return self._settings.enabled and now_s >= self._due_s

    def displace(
        self,
        heads: Iterable[Head],
        running: Sequence[LiveRequest],
        *,
        room: Room,
        table: WeightTable,
        model: StepTimeModel | None,
        now_s: float,
    ) -> Displacement | None:
        """Whom to preempt for the heaviest head that cannot wait; None: nobody.

        At most one search among the running requests a call: for a lighter head fewer of
        them would do.
        """
        self._due_s = now_s + LOOK_EVERY_S
        scene = _Scene(running, room, table, model, now_s)
        pressed = [head for head in heads if self._may_press(*head, scene)]
        for ticket, policy in sorted(pressed, key=lambda head: -head[1].weight):
            head = self._in_terms(ticket, policy, scene)
            if self.preemption.considers(head, now_s):
                return self._search(head, scene)
        return None

    def _may_press(self, ticket: Ticket, policy: ClassPolicy, scene: "_Scene") -> bool:
        """Whether it is worth looking closer: most heads fail at this."""
        if policy.tier > Tier.P1 or ticket.displaced or math.isinf(policy.slo.ttft_s):
            return False
        slack_s = policy.slo.ttft_s - scene.first_token_s(ticket.prompt_tokens)
        return scene.now_s - ticket.arrived_s >= self._settings.patience_ratio * slack_s

    def _search(self, head: WaitingHead, scene: "_Scene") -> Displacement | None:
        by_id = {request.request_id: request for request in scene.running}
        victims = self.preemption.victims(
            head,
            self._candidates(scene, with_blocks=head.lacks_blocks > 0),
            prefill_tokens_per_s=scene.prefill_tokens_per_s,
            now_s=scene.now_s,
        )
        if not victims:
            self._due_s = scene.now_s + AFTER_REFUSAL_S
            return None
        for victim in victims:
            self._intake.ticket_of(by_id[victim.request_id]).displaced += 1
        return Displacement(head.request_id, tuple(by_id[one.request_id] for one in victims))

    def _in_terms(self, ticket: Ticket, policy: ClassPolicy, scene: "_Scene") -> WaitingHead:
        return WaitingHead(
            request_id=ticket.request_id,
            task_class=ticket.task_class,
            weight=policy.weight,
            tier=self._admission.tier(policy, scene.now_s),
            age_s=scene.now_s - ticket.arrived_s,
            ttft_slo_s=policy.slo.ttft_s,
            first_token_s=scene.first_token_s(ticket.prompt_tokens),
            free_in_s=self._free_in_s(scene),
            lacks_slot=scene.room.slots_free <= 0,
            lacks_blocks=self._admission.lacking_blocks(
                ticket, policy, free_blocks=scene.room.blocks_free, now_s=scene.now_s
            ),
            late=policy.late,
            preemptions=ticket.displaced,
        )

    def _candidates(self, scene: "_Scene", *, with_blocks: bool) -> list[RunningRequest]:
        """Who could go. Blocks are counted only if some are lacking: it is what costs most."""
        return [
            self._candidate(request, scene, self._blocks_of(request) if with_blocks else 0)
            for request in scene.running
            if self._may_go(request)
        ]

    def _candidate(self, request: LiveRequest, scene: "_Scene", blocks: int) -> RunningRequest:
        ticket = self._intake.ticket_of(request)
        policy = scene.table.policy(ticket.task_class)
        return RunningRequest(
            request_id=request.request_id,
            weight=policy.weight,
            tier=self._admission.tier(policy, scene.now_s),
            ran_s=scene.now_s - ticket.admitted_s,
            admission=ticket.admission,
            computed_tokens=request.num_computed_tokens,
            blocks=blocks,
            preemptions=ticket.displaced,
        )

    def _free_in_s(self, scene: "_Scene") -> float | None:
        """When the next running request ends at the latest; None: not in sight."""
        if scene.step_s is None:
            return None
        if scene.fewest_left_tokens is None:
            tickets = self._intake.tickets
            scene.fewest_left_tokens = min(
                (
                    ticket.max_tokens - request.num_output_tokens
                    for request in scene.running
                    if (ticket := tickets.get(request.request_id)) and ticket.max_tokens is not None
                ),
                default=math.inf,
            )
        left_tokens = scene.fewest_left_tokens
        return None if math.isinf(left_tokens) else left_tokens * scene.step_s


class _Scene:
    """The engine at this moment, and what its step-time model says of it."""

    def __init__(
        self,
        running: Sequence[LiveRequest],
        room: Room,
        table: WeightTable,
        model: StepTimeModel | None,
        now_s: float,
    ) -> None:
        self.running = running
        self.room = room
        self.table = table
        self.now_s = now_s
        self.fewest_left_tokens: float | None = None
        self._model = model
        self.step_s = None if model is None else model.time_s(0, len(running), room.kv_tokens)

    @property
    def prefill_tokens_per_s(self) -> float:
        """What the engine could prefill; 0 as long as its steps are unknown."""
        if self._model is None:
            return 0.0
        step_s = self._model.time_s(self.room.step_tokens, 0, 0)
        return self.room.step_tokens / step_s if step_s > 0 else 0.0

    def first_token_s(self, prompt_tokens: int) -> float:
        """From admission to the first token: full steps until the prompt is through."""
        if self._model is None:
            return 0.0
        steps = -(-prompt_tokens // self.room.step_tokens)
        decoding, kv_tokens = len(self.running), self.room.kv_tokens
        prefill_s = self._model.prefill_s_per_token * prompt_tokens
        return prefill_s + steps * self._model.time_s(0, decoding, kv_tokens)
