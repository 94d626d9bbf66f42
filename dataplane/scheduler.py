"""vLLM's scheduler, steered: ``--scheduler-cls dataplane.scheduler.TrimtabScheduler``.

Every override does its own part inside the fault barrier and calls vLLM outside of it: a
fault of the plugin costs the plugin's effect in that one call, never a request.

Under the discipline ``fcfs`` the plugin only meters: order, budget and memory are stock
vLLM's, so that an engine can be compared with itself.
"""

import logging
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.engine import EngineCoreOutputs, FinishReason
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from dataplane.admission import Admission
from dataplane.breaker import Breaker
from dataplane.clock import Clock
from dataplane.config import DataplaneConfig, load_config
from dataplane.displacement import Displacement, Displacer
from dataplane.errors import ConfigError
from dataplane.exporter import Exporter
from dataplane.faults import FaultBarrier
from dataplane.intake import Intake
from dataplane.labels import ClassLabels
from dataplane.meter import Meter
from dataplane.progress import Ending, Progress
from dataplane.notices import RefusalNotices
from dataplane.queue import ClassRequestQueue
from dataplane.refusals import NoticeWriter
from dataplane.reserve import KvReserve
from dataplane.room import Room
from dataplane.shaping import UNLIMITED, Shaping
from dataplane.state import ClassState, EngineState, SteeringState
from dataplane.step_time import StepTimeModel, StepTimeStats
from dataplane.steps import StepLoad, StepLog
from dataplane.subscriber import Identity, Subscriber, TableInForce
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, Discipline, Tier, WeightTable

logger = logging.getLogger("vllm.trimtab")

STATE_INTERVAL_S = 0.1
"""How old the state that the plugin's threads see may get while steps go on."""

MODEL_INTERVAL_S = 1.0
"""How old the step-time model may get."""

_ENDINGS = {FinishReason.ABORT: Ending.ABORTED, FinishReason.ERROR: Ending.FAILED}


class TrimtabScheduler(AsyncScheduler):  # type: ignore[misc] # vLLM ships no type information
    """AsyncScheduler with class queues ordered by the weights of a control plane.

    Raises:
        ConfigError: the environment holds a value that cannot be used, or vLLM was told to
            order requests by its own priorities.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.policy is not SchedulingPolicy.FCFS:
            raise ConfigError("start vLLM without --scheduling-policy: Trimtab orders requests")
        config = load_config()
        self._clock = Clock()
        self._barrier = FaultBarrier()
        self._in_force = TableInForce()
        self._meter = Meter()
        self._intake = Intake(
            meter=self._meter,
            labels=ClassLabels(config.max_class_names),
            table=self._in_force.at,
            barrier=self._barrier,
            clock=self._clock,
        )
        self._progress = Progress(meter=self._meter, intake=self._intake, table=self._in_force.at)
        self.waiting = ClassRequestQueue(self._intake.ticket_of, self._barrier)
        self._running_reordered = False
        self._set_up_steering(config)
        self._state = EngineState()
        self._state_due_s = 0.0
        self._start_threads(config)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:  # noqa: FBT001, FBT002 - vLLM's signature
        """Run one step's decisions under the table in force at its beginning."""
        now_s = self._clock.monotonic_s()
        displacement: Displacement | None = None
        self.max_num_scheduled_tokens, self._plan = self._step_tokens, UNLIMITED
        with self._barrier:
            displacement = self._begin_step(self._in_force.at(now_s), now_s)
        if displacement is not None:
            self._displace(displacement, now_s)
        output = super().schedule(throttle_prefills)
        with self._barrier:
            self._end_step(output, now_s)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Time the step, and meter what it gave."""
        with self._barrier:
            self._time_step(scheduler_output, self._clock.monotonic_s())
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(
            scheduler_output, model_runner_output
        )
        with self._barrier:
            now_s = self._clock.monotonic_s()
            self._progress.step_ended(now_s)
            self._show_state(now_s)
        return outputs

    def shutdown(self) -> None:
        """Stop the plugin's threads."""
        with self._barrier:
            self._subscriber.stop()
            self._exporter.stop()
        super().shutdown()

    def _reserve_prefill_lookahead(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        """Where vLLM asks how many tokens a request gets: no more than the step's plan says."""
        planned = self._plan.prefill_tokens.get(request.request_id, num_new_tokens)
        tokens: int = super()._reserve_prefill_lookahead(
            request, num_computed_tokens, min(num_new_tokens, planned)
        )
        return tokens

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        computed_tokens = request.num_computed_tokens
        super()._preempt_request(request, *args, **kwargs)
        with self._barrier:
            self._incidents += 1
            self._progress.preempted(request, computed_tokens)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        """Meter a request that ended, however it did."""
        freed = super()._free_request(request, *args, **kwargs)
        with self._barrier:
            now_s = self._clock.monotonic_s()
            ending = _ENDINGS.get(request.get_finished_reason(), Ending.DONE)
            self._progress.ended(request, ending, now_s)
            if not self._meter.live:
                self._show_state(now_s)
        return freed

    def _set_up_steering(self, config: DataplaneConfig) -> None:
        self._step_tokens: int = self.max_num_scheduled_tokens
        self._total_blocks: int = self.kv_cache_config.num_blocks
        self._kv_groups = max(1, len(self.kv_cache_config.kv_cache_groups))
        self._prompt_ids: list[str] = []
        self._steps = StepLog()
        self._step_time = StepTimeStats()
        self._model: StepTimeModel | None = None
        self._model_due_s = 0.0
        self._incidents = 0
        self._admission = Admission(
            Breaker(config.breaker),
            KvReserve(config.reserve, self._total_blocks),
            total_blocks=self._total_blocks,
            block_tokens=self.block_size,
            groups=self._kv_groups,
        )
        self._displacer = Displacer(
            config.preemption,
            admission=self._admission,
            intake=self._intake,
            blocks_of=self._blocks_of,
        )
        self._shaping = Shaping(
            tokens_per_decode=1 + self.num_spec_tokens,
            admission=self._admission,
            intake=self._intake,
            meter=self._meter,
        )
        self._plan = UNLIMITED

    def _start_threads(self, config: DataplaneConfig) -> None:
        if config.prometheus_multiproc_dir is None:
            logger.warning("Trimtab: set PROMETHEUS_MULTIPROC_DIR to see class metrics")
        self._exporter = Exporter(
            meter=self._meter,
            in_force=self._in_force,
            state=lambda: self._state,
            barrier=self._barrier,
            clock=self._clock,
            interval_s=config.flush_interval_s,
            notices=self._notices(config),
        )
        self._subscriber = Subscriber(
            control_plane=config.control_plane,
            identity=Identity(config.engine_id, _plugin_version(), vllm.__version__),
            in_force=self._in_force,
            state=lambda: self._state,
            barrier=self._barrier,
            clock=self._clock,
            report_interval_s=config.report_interval_s,
        )
        self._exporter.start()
        self._subscriber.start()
        logger.info("Trimtab: %s follows %s", config.engine_id, config.control_plane)

    def _notices(self, config: DataplaneConfig) -> RefusalNotices | None:
        if config.notices_dir is None:
            return None
        writer = NoticeWriter(
            config.notices_dir, engine_id=config.engine_id, interval_s=config.flush_interval_s
        )
        return RefusalNotices(
            writer, breaker=self._admission.breaker, in_force=self._in_force, clock=self._clock
        )

    def _begin_step(self, table: WeightTable, now_s: float) -> Displacement | None:
        self._prompt_ids = [request.request_id for request in self._inflight_prefills]
        if table.discipline is Discipline.FCFS:
            self.waiting.begin_step(table, now_s)
            if self._running_reordered:
                self._order_running_by_admission()
            return None
        self._now_s = now_s
        self.waiting.begin_step(table, now_s, self._gate)
        if self._memory_may_run_short():
            self._order_running_by_weight(table)
        displacement = self._displacement(table, now_s)
        if displacement is None:
            self._shape(table, now_s)
        return displacement

    def _gate(self, ticket: Ticket, policy: ClassPolicy) -> bool:
        """Whether the breaker and the KV reserve let this head start now."""
        return self._admission.admits(
            ticket,
            policy,
            free_blocks=self._free_blocks(),
            running=len(self.running),
            now_s=self._now_s,
        )

    def _displacement(self, table: WeightTable, now_s: float) -> Displacement | None:
        if not self.waiting or not self.running:
            return None
        return self._displacer.displace(
            self.waiting.heads(),
            self.running,
            room=self._room(),
            table=table,
            model=self._model,
            now_s=now_s,
        )

    def _displace(self, displacement: Displacement, now_s: float) -> None:
        """Send the victims back to the queue, and let the head in that they make room for."""
        for victim in displacement.victims:
            self.running.remove(victim)
            # It may come back in this very step: then it is new to the workers.
            self.prev_step_scheduled_req_ids.discard(victim.request_id)
            self._preempt_request(victim, now_s)
        with self._barrier:
            self._incidents -= len(displacement.victims)  # Of our own making.
            self.waiting.pin(displacement.beneficiary)

    def _shape(self, table: WeightTable, now_s: float) -> None:
        if self.need_mamba_block_aligned_split:
            return  # Chunks of these models end at block boundaries only.
        prefills = [
            request
            for request in self._inflight_prefills
            if request.status is RequestStatus.RUNNING and not request.has_encoder_inputs
        ]
        if not prefills and (not self.waiting or self._slots_free() <= 0):
            return
        self._plan = self._shaping.plan(
            prefills,
            self.running,
            self.waiting.heads(),
            room=self._room(),
            table=table,
            model=self._model,
            now_s=now_s,
        )
        if self._plan.tokens is not None:
            self.max_num_scheduled_tokens = self._plan.tokens

    def _end_step(self, output: SchedulerOutput, now_s: float) -> None:
        count = len(output.scheduled_new_reqs) + len(output.scheduled_cached_reqs.resumed_req_ids)
        admitted = self.running[-count:] if count else []
        self._progress.admitted(admitted, now_s)
        self._note_admissions(admitted, now_s)
        self._incidents += self._found_no_memory(output)
        self.waiting.end_step()
        self._log_step(output, admitted, now_s)
        self._show_state(now_s)

    def _note_admissions(self, requests: list[Request], now_s: float) -> None:
        table = self._in_force.at(now_s)
        for request in requests:
            policy = table.policy(self._intake.ticket_of(request).task_class)
            self._admission.breaker.admitted(policy.tier, now_s)

    def _log_step(self, output: SchedulerOutput, admitted: list[Request], now_s: float) -> None:
        """Note what is in the step, in time linear in the prompts in it."""
        tokens = output.num_scheduled_tokens
        prompts = {*self._prompt_ids, *(request.request_id for request in admitted)} & tokens.keys()
        load = StepLoad(
            prefill_tokens=sum(tokens[request_id] for request_id in prompts),
            decoding=len(tokens) - len(prompts),
            kv_tokens=self._kv_tokens(),
        )
        self._steps.scheduled(output, load, now_s)

    def _time_step(self, output: SchedulerOutput, now_s: float) -> None:
        """Learn from a step whose result is there."""
        step = self._steps.ended(output, now_s)
        if step is None or not output.total_num_scheduled_tokens:
            return
        load = step.load
        self._step_time.add(load.prefill_tokens, load.decoding, load.kv_tokens, step.elapsed_s)
        self._admission.breaker.step(now_s, step.elapsed_s, self._incidents)
        self._incidents = 0
        if now_s >= self._model_due_s:
            self._model_due_s = now_s + MODEL_INTERVAL_S
            self._model = self._step_time.fit()

    def _found_no_memory(self, output: SchedulerOutput) -> bool:
        """Whether a head was left waiting though a slot and tokens were free for it."""
        if not self.waiting or self._slots_free() <= 0:
            return False
        if output.total_num_scheduled_tokens >= self.max_num_scheduled_tokens:
            return False
        head = self._intake.ticket_of(self.waiting.peek_request())
        return self._admission.need_blocks(head) > self._free_blocks()

    def _order_running_by_weight(self, table: WeightTable) -> None:
        """Of the running requests vLLM preempts the last when memory runs short."""

        def rank(request: Request) -> float:
            return -table.policy(self._intake.ticket_of(request).task_class).weight

        self.running.sort(key=rank)
        self._running_reordered = True

    def _order_running_by_admission(self) -> None:
        self.running.sort(key=lambda request: self._intake.ticket_of(request).admission)
        self._running_reordered = False

    def _memory_may_run_short(self) -> bool:
        """Whether this step could ask for more KV blocks than are free, at the very most."""
        per_group = -(-self._step_tokens // self.block_size) + len(self.running)
        return self._free_blocks() < per_group * self._kv_groups

    def _room(self) -> Room:
        return Room(
            slots_free=self._slots_free(),
            blocks_free=self._free_blocks(),
            step_tokens=self._step_tokens,
            chunk_tokens=self._chunk_tokens(),
            kv_tokens=self._kv_tokens(),
        )

    def _chunk_tokens(self) -> int:
        """How many tokens of a step vLLM gives to one prompt, as it is configured."""
        threshold = self.scheduler_config.long_prefill_token_threshold
        requests = len(self.running) + len(self.waiting)
        if threshold <= 0 or requests <= 1:
            return self._step_tokens
        if self.adaptive_long_prefill_threshold:
            threshold = max(threshold, self._step_tokens // requests)
        return int(threshold)

    def _slots_free(self) -> int:
        taken = len(self.running) + self.num_waiting_for_streaming_input
        return max(0, int(self.max_num_active_reqs) - taken)

    def _free_blocks(self) -> int:
        return int(self.kv_cache_manager.block_pool.get_num_free_blocks())

    def _kv_tokens(self) -> int:
        used_blocks = (self._total_blocks - self._free_blocks()) // self._kv_groups
        return int(used_blocks * self.block_size)

    def _blocks_of(self, request: Request) -> int:
        """Blocks that only this request uses."""
        groups = self.kv_cache_manager.get_blocks(request.request_id).blocks
        return sum(block.ref_cnt == 1 for group in groups for block in group)

    def _show_state(self, now_s: float) -> None:
        """Hand the plugin's threads a new state: every so often, and when all is done."""
        if now_s < self._state_due_s and self._meter.live:
            return
        self._state_due_s = now_s + STATE_INTERVAL_S
        self._progress.count(self.running)
        self._observe_held_blocks(now_s)
        self._state = EngineState(
            kv_usage_ratio=self.kv_cache_manager.usage,
            classes=tuple(
                ClassState(
                    task_class=task_class,
                    waiting=tally.live - tally.running,
                    running=tally.running,
                    waiting_past_slo=self.waiting.past_slo(task_class),
                    oldest_arrival_s=self.waiting.oldest_arrival_s(task_class),
                )
                for task_class, tally in self._meter.tallies.items()
            ),
            step_time=self._step_time.sums(),
            breaker=self._admission.breaker.state(now_s),
            preemptions=sum(tally.preempted for tally in self._meter.tallies.values()),
            recomputed_tokens=sum(
                tally.recomputed_tokens for tally in self._meter.tallies.values()
            ),
            steering=self._steering_state(),
        )

    def _steering_state(self) -> SteeringState:
        breaker, reserve = self._admission.breaker, self._admission.reserve
        preemption, cap, model = self._displacer.preemption, self._shaping.cap, self._model
        return SteeringState(
            breaker_trips=_by_label(breaker.trips),
            breaker_refusals=_by_label(breaker.refused),
            reserved_blocks={tier.name.lower(): reserve.withheld_blocks(tier) for tier in Tier},
            held_back=_by_label(reserve.held_back),
            displaced=dict(preemption.preempted),
            displacements_refused=dict(preemption.refused),
            capped_steps=cap.capped_steps,
            withheld_tokens=cap.withheld_tokens,
            coefficients={} if model is None else model.by_term(),
        )

    def _observe_held_blocks(self, now_s: float) -> None:
        table = self._in_force.at(now_s)
        held = [0] * len(Tier)
        for request in self.running:
            policy = table.policy(self._intake.ticket_of(request).task_class)
            blocks = -(-request.num_computed_tokens // self.block_size) * self._kv_groups
            held[self._admission.tier(policy, now_s)] += blocks
        self._admission.reserve.observe(held, now_s)


def _by_label(counts: Mapping[Any, int]) -> dict[str, int]:
    return {key.name.lower(): count for key, count in counts.items()}


def _plugin_version() -> str:
    try:
        return version("trimtab")
    except PackageNotFoundError:
        return "uninstalled"
