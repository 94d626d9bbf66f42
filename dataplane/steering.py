"""What the plugin decides in each step of the engine, beyond who goes next.

Under the discipline ``fcfs`` it only measures: budget, memory and slots are stock vLLM's,
so that an engine can be compared with itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, TypeVar

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from dataplane.admission import Admission
from dataplane.breaker import Breaker
from dataplane.config import DataplaneConfig
from dataplane.displacement import Displacement, Displacer
from dataplane.engine_view import EngineView
from dataplane.intake import Intake
from dataplane.meter import Meter
from dataplane.queue import ClassRequestQueue
from dataplane.reserve import KvReserve
from dataplane.shaping import UNLIMITED, Shaping, StepPlan
from dataplane.state import SteeringState
from dataplane.step_time import StepTimeModel, StepTimeStats
from dataplane.steps import StepLoad, StepLog
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, Discipline, Tier, WeightTable

MODEL_INTERVAL_S = 1.0
"""How old the step-time model may get."""

_Label = TypeVar("_Label", bound=Enum)


class StepDecision(NamedTuple):
    """What the scheduler is to do before vLLM's own scheduling."""

    displacement: Displacement | None = None
    plan: StepPlan = UNLIMITED


class Steering:
    """All calls come from the scheduler's thread, except those of ``admission.breaker``'s state.

    Attributes:
        admission: holds the breaker and the KV reserve.
        step_time: what was learnt about the time of a step.
    """

    def __init__(
        self,
        config: DataplaneConfig,
        *,
        view: EngineView,
        queue: ClassRequestQueue,
        intake: Intake,
        meter: Meter,
    ) -> None:
        self._view = view
        self._queue = queue
        self._intake = intake
        self.admission = Admission(
            Breaker(config.breaker),
            KvReserve(config.reserve, view.total_blocks),
            total_blocks=view.total_blocks,
            block_tokens=view.block_tokens,
            groups=view.groups,
        )
        self._displacer = Displacer(
            config.preemption,
            admission=self.admission,
            intake=intake,
            may_go=view.may_go,
            blocks_of=view.own_blocks,
        )
        self._shaping = Shaping(
            tokens_per_decode=view.tokens_per_decode,
            admission=self.admission,
            intake=intake,
            meter=meter,
            cached_tokens=lambda ticket: view.cached_tokens(queue.request_of(ticket)),
        )
        self.step_time = StepTimeStats()
        self._model: StepTimeModel | None = None
        self._model_due_s = 0.0
        self._steps = StepLog()
        self._prompt_ids: list[str] = []
        self._incidents = 0
        self._running_reordered = False
        self._now_s = 0.0

    def begin_step(self, table: WeightTable, now_s: float) -> StepDecision:
        """Open the queue for a step, and decide what else the step is to be like."""
        self._now_s = now_s
        self._prompt_ids = self._view.prompt_ids()
        if table.discipline is Discipline.FCFS:
            self._queue.begin_step(table, now_s)
            self._order_running_by_admission()
            return StepDecision()
        self._queue.begin_step(table, now_s, self._gate)
        if self._view.memory_may_run_short():
            self._order_running_by_weight(table)
        displacement = self._displacement(table, now_s)
        if displacement is not None:
            return StepDecision(displacement)
        return StepDecision(plan=self._plan(table, now_s))

    def end_step(
        self, output: SchedulerOutput, admitted: Sequence[Request], table: WeightTable, now_s: float
    ) -> None:
        """Close the queue, and note what the step holds, in time linear in its prompts."""
        for request in admitted:
            self.admission.breaker.admitted(self._policy(request, table).tier, now_s)
        self._incidents += self._found_no_memory(output)
        self._queue.end_step()
        tokens = output.num_scheduled_tokens
        prompts = [*self._prompt_ids, *(request.request_id for request in admitted)]
        prompt_tokens = [tokens[request_id] for request_id in prompts if request_id in tokens]
        load = StepLoad(
            prefill_tokens=sum(prompt_tokens),
            decoding=len(tokens) - len(prompt_tokens),
            kv_tokens=self._view.kv_tokens(),
        )
        self._steps.scheduled(output, load, now_s)

    def preempted(self, *, by_weight: bool) -> None:
        """A running request was sent back: by vLLM for want of memory, or by weight."""
        self._incidents += not by_weight

    def step_ended(self, output: SchedulerOutput, now_s: float) -> None:
        """Learn from a step whose result is there."""
        step = self._steps.ended(output, now_s)
        if step is None or not output.total_num_scheduled_tokens:
            return
        load = step.load
        self.step_time.add(load.prefill_tokens, load.decoding, load.kv_tokens, step.elapsed_s)
        self.admission.breaker.step(now_s, step.elapsed_s, self._incidents)
        self._incidents = 0
        if now_s >= self._model_due_s:
            self._model_due_s = now_s + MODEL_INTERVAL_S
            self._model = self.step_time.fit()

    def observe(self, table: WeightTable, now_s: float) -> None:
        """Tell the KV reserve what each tier holds; from time to time, linear in what runs."""
        by_class: dict[str, int] = {}
        class_of, held_blocks = self._intake.task_class_of, self._view.held_blocks
        for request in self._view.running:
            task_class = class_of(request)
            by_class[task_class] = by_class.get(task_class, 0) + held_blocks(request)
        by_tier = [0] * len(Tier)
        for task_class, blocks in by_class.items():
            by_tier[self.admission.tier(table.policy(task_class), now_s)] += blocks
        self.admission.reserve.observe(by_tier, now_s)

    def state(self) -> SteeringState:
        """For the metrics."""
        breaker, reserve = self.admission.breaker, self.admission.reserve
        preemption, cap, model = self._displacer.preemption, self._shaping.cap, self._model
        return SteeringState(
            breaker_trips=_by_label(breaker.trips),
            breaker_refusals=_by_label(breaker.refused),
            reserved_blocks={tier.name.lower(): reserve.withheld_blocks(tier) for tier in Tier},
            held_back=_by_label(reserve.held_back),
            displaced=_by_label(preemption.preempted),
            displacements_refused=_by_label(preemption.refused),
            capped_steps=cap.capped_steps,
            withheld_tokens=cap.withheld_tokens,
            coefficients={} if model is None else _by_term(model),
        )

    def _gate(self, ticket: Ticket, policy: ClassPolicy) -> bool:
        """Whether the breaker and the KV reserve let this head start now."""
        return self.admission.admits(
            ticket,
            policy,
            free_blocks=self._view.free_blocks(),
            running=len(self._view.running),
            now_s=self._now_s,
        )

    def _displacement(self, table: WeightTable, now_s: float) -> Displacement | None:
        if not len(self._queue) or not self._displacer.due(now_s):
            return None
        if self._roomy() or not self._view.admits:
            return None
        return self._displacer.displace(
            list(self._startable()),
            self._view.running,
            room=self._view.room(),
            table=table,
            model=self._model,
            now_s=now_s,
        )

    def _startable(self) -> Iterator[tuple[Ticket, ClassPolicy]]:
        """The heads that wait for a place only. What others leave unused would be lost."""
        for head in self._queue.heads():
            if self._view.could_start(self._queue.request_of(head[0])):
                yield head

    def _roomy(self) -> bool:
        """Whether whoever may go next finds a slot, and memory for the longest prompt."""
        withheld = self.admission.reserve.withheld_blocks(Tier.P1)
        return bool(
            self._view.slots_free()
            and self._view.free_blocks() - withheld >= self._view.longest_blocks
        )

    def _plan(self, table: WeightTable, now_s: float) -> StepPlan:
        if not self._view.shapeable:
            return UNLIMITED
        prefills = self._view.prefills()
        may_admit = len(self._queue) and self._view.slots_free() and self._view.admits
        if not prefills and not may_admit:
            return UNLIMITED
        return self._shaping.plan(
            prefills,
            self._view.running,
            self._startable() if may_admit else (),
            room=self._view.room(),
            table=table,
            model=self._model,
            now_s=now_s,
        )

    def _found_no_memory(self, output: SchedulerOutput) -> bool:
        """Whether a head was left waiting though a slot and tokens were free for it."""
        if not len(self._queue) or not self._view.slots_free() or not self._queue:
            return False
        if output.total_num_scheduled_tokens >= self._view.step_tokens:
            return False
        head = self._intake.ticket_of(self._queue.peek_request())
        return self.admission.need_blocks(head) > self._view.free_blocks()

    def _order_running_by_weight(self, table: WeightTable) -> None:
        """Of the running requests vLLM preempts the last when memory runs short."""
        self._view.running.sort(key=lambda request: -self._policy(request, table).weight)
        self._running_reordered = True

    def _order_running_by_admission(self) -> None:
        if self._running_reordered:
            tickets = self._intake
            self._view.running.sort(key=lambda request: tickets.ticket_of(request).admission)
            self._running_reordered = False

    def _policy(self, request: Request, table: WeightTable) -> ClassPolicy:
        return table.policy(self._intake.task_class_of(request))


def _by_label(counts: Mapping[_Label, int]) -> dict[str, int]:
    return {key.name.lower(): count for key, count in counts.items()}


def _by_term(model: StepTimeModel) -> dict[str, float]:
    return {
        "step": model.base_s,
        "prefill_token": model.prefill_s_per_token,
        "decoding_sequence": model.decode_s_per_sequence,
        "kv_token": model.kv_s_per_token,
    }
