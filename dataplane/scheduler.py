"""vLLM's scheduler, steered: ``--scheduler-cls dataplane.scheduler.TrimtabScheduler``.

Every override does its own part inside the fault barrier and calls vLLM outside of it: a
fault of the plugin costs the plugin's effect in that one call, never a request.
"""

import logging
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.engine import EngineCoreOutputs, FinishReason
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from dataplane.clock import Clock
from dataplane.compat import require_supported
from dataplane.config import DataplaneConfig, load_config
from dataplane.displacement import Displacement
from dataplane.engine_view import EngineView
from dataplane.errors import ConfigError
from dataplane.exporter import Exporter
from dataplane.faults import FaultBarrier
from dataplane.intake import Intake
from dataplane.labels import ClassLabels
from dataplane.meter import Meter, Tally
from dataplane.notices import RefusalNotices
from dataplane.progress import Ending, Progress
from dataplane.queue import ClassRequestQueue
from dataplane.refusals import NoticeWriter
from dataplane.shaping import StepPlan
from dataplane.state import ClassState, EngineState
from dataplane.steering import Steering, StepDecision
from dataplane.subscriber import Identity, Subscriber, TableInForce

logger = logging.getLogger("vllm.trimtab")

STATE_INTERVAL_S = 0.25
"""How old the state that the plugin's threads see may get while steps go on."""

_ENDINGS = {FinishReason.ABORT: Ending.ABORTED, FinishReason.ERROR: Ending.FAILED}


class TrimtabScheduler(AsyncScheduler):  # type: ignore[misc] # vLLM ships no type information
    """AsyncScheduler with class queues ordered by the weights of a control plane.

    Raises:
        ConfigError: the environment holds a value that cannot be used, vLLM is of a version
            that the plugin is not tested with, or it was told to order requests by its own
            priorities.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        config = load_config()
        require_supported(vllm.__version__, allow_unsupported=config.allow_unsupported_vllm)
        super().__init__(*args, **kwargs)
        if self.policy is not SchedulingPolicy.FCFS:
            raise ConfigError("start vLLM without --scheduling-policy: Trimtab orders requests")
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
        self._queue = self.waiting = ClassRequestQueue(self._intake.ticket_of, self._barrier)
        self._progress = Progress(
            meter=self._meter,
            intake=self._intake,
            table=self._in_force.at,
            on_end=self._queue.ended,
        )
        self._view = EngineView(self)
        self._steering = Steering(
            config, view=self._view, queue=self._queue, intake=self._intake, meter=self._meter
        )
        self._decision = StepDecision()
        self._displacing = False
        self._state = EngineState()
        self._state_due_s = 0.0
        self._start_threads(config)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:  # noqa: FBT001, FBT002 - vLLM's signature
        """Run one step's decisions under the table in force at its beginning."""
        now_s = self._clock.monotonic_s()
        table = self._in_force.at(now_s)
        self._decision = StepDecision()
        with self._barrier:
            self._decision = self._steering.begin_step(table, now_s)
        displacement, plan = self._decision
        if displacement is not None:
            self._displace(displacement, now_s)
        self._follow(plan)
        output = super().schedule(throttle_prefills)
        with self._barrier:
            count = len(output.scheduled_new_reqs) + len(
                output.scheduled_cached_reqs.resumed_req_ids
            )
            admitted = self.running[-count:] if count else []
            self._progress.admitted(admitted, now_s)
            self._steering.end_step(output, admitted, table, now_s)
            self._show_state(now_s)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Time the step, and meter what it gave."""
        with self._barrier:
            self._steering.step_ended(scheduler_output, self._clock.monotonic_s())
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
        with self._barrier:
            self._exporter.stop()
        super().shutdown()

    def _follow(self, plan: StepPlan) -> None:
        """Make vLLM's own scheduling keep to the plan.

        vLLM asks ``_reserve_prefill_lookahead`` how many tokens each single request gets, and
        in most steps there is nothing to say: the answer stands in for vLLM's own only in
        steps that have a plan.
        """
        self.max_num_scheduled_tokens = plan.tokens or self._view.step_tokens
        if plan.prefill_tokens:
            self._reserve_prefill_lookahead = self._planned_tokens
        elif "_reserve_prefill_lookahead" in vars(self):
            del self._reserve_prefill_lookahead

    def _planned_tokens(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        planned = self._decision.plan.prefill_tokens.get(request.request_id, num_new_tokens)
        tokens: int = super()._reserve_prefill_lookahead(
            request, num_computed_tokens, min(num_new_tokens, planned)
        )
        return tokens

    def _displace(self, displacement: Displacement, now_s: float) -> None:
        """Send the victims back to the queue, and let the head in that they make room for."""
        self._displacing = True
        for victim in displacement.victims:
            self.running.remove(victim)
            # It may come back in this very step: then it is new to the workers.
            self.prev_step_scheduled_req_ids.discard(victim.request_id)
            # Where a connector is to hand on what was computed, vLLM drops what is in flight.
            self._preempt_request(victim, now_s, drop_stale_output=self.requires_kv_delivery)
        self._displacing = False
        with self._barrier:
            self._queue.pin(displacement.beneficiary)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        computed_tokens = request.num_computed_tokens
        super()._preempt_request(request, *args, **kwargs)
        with self._barrier:
            self._steering.preempted(by_weight=self._displacing)
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
        return RefusalNotices(
            NoticeWriter(
                config.notices_dir, engine_id=config.engine_id, interval_s=config.flush_interval_s
            ),
            breaker=self._steering.admission.breaker,
            in_force=self._in_force,
            seen=lambda: list(self._meter.tallies),
            clock=self._clock,
        )

    def _show_state(self, now_s: float) -> None:
        """Hand the plugin's threads a new state: every so often, and when all is done."""
        if now_s < self._state_due_s and self._meter.live:
            return
        self._state_due_s = now_s + STATE_INTERVAL_S
        self._progress.count(self.running)
        self._steering.observe(self._in_force.at(now_s), now_s)
        tallies = self._meter.tallies
        self._state = EngineState(
            kv_usage_ratio=self._view.kv_usage_ratio(),
            classes=tuple(self._class_state(name, tally) for name, tally in tallies.items()),
            step_time=self._steering.step_time.sums(),
            breaker=self._steering.admission.breaker.state(now_s),
            preemptions=sum(tally.preempted for tally in tallies.values()),
            recomputed_tokens=sum(tally.recomputed_tokens for tally in tallies.values()),
            steering=self._steering.state(),
        )

    def _class_state(self, task_class: str, tally: Tally) -> ClassState:
        waiting_past_slo = self._queue.past_slo(task_class)  # finds those that turned late
        turned_late = self._queue.turned_late(task_class)
        return ClassState(
            task_class=task_class,
            waiting=tally.live - tally.running,
            running=tally.running,
            waiting_past_slo=waiting_past_slo,
            oldest_arrival_s=self._queue.oldest_arrival_s(task_class),
            judged=tally.judged + turned_late,
            violated=tally.violated + turned_late,
        )


def _plugin_version() -> str:
    try:
        return version("trimtab")
    except PackageNotFoundError:
        return "uninstalled"
