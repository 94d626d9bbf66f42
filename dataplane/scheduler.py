"""vLLM's scheduler, steered: ``--scheduler-cls dataplane.scheduler.TrimtabScheduler``.

Every override does its own part inside the fault barrier and calls vLLM outside of it: a
fault of the plugin costs the plugin's effect in that one call, never a request.
"""

import logging
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.engine import EngineCoreOutputs, FinishReason
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from dataplane.clock import Clock
from dataplane.compat import require_supported
from dataplane.config import DataplaneConfig, load_config
from dataplane.errors import ConfigError
from dataplane.exporter import Exporter
from dataplane.faults import FaultBarrier
from dataplane.intake import Intake
from dataplane.labels import ClassLabels
from dataplane.meter import Meter, Outcome, judge
from dataplane.ordering import running_rank
from dataplane.queue import ClassRequestQueue
from dataplane.state import ClassState, EngineState
from dataplane.subscriber import Identity, Subscriber, TableInForce
from dataplane.ticket import Ticket
from dataplane.weights import Discipline, WeightTable

logger = logging.getLogger("vllm.trimtab")

STATE_INTERVAL_S = 0.1
"""How old the state that the plugin's threads see may get while steps go on."""


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
        self.waiting = ClassRequestQueue(self._intake.ticket_of, self._barrier)
        self._state = EngineState()
        self._state_due_s = 0.0
        self._running_reordered = False
        self._start_threads(config)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:  # noqa: FBT001, FBT002 - vLLM's signature
        """Run one step's decisions under the table in force at its beginning."""
        now_s = self._clock.monotonic_s()
        with self._barrier:
            self._begin_step(self._in_force.at(now_s), now_s)
        output = super().schedule(throttle_prefills)
        with self._barrier:
            self._end_step(output, now_s)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Meter the tokens that a step gave, and the requests that ended with it."""
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(
            scheduler_output, model_runner_output
        )
        with self._barrier:
            self._account_for(outputs, self._clock.monotonic_s())
        return outputs

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        """Meter requests that are ended from outside."""
        ended: list[Request] = super().finish_requests(request_ids, finished_status)
        with self._barrier:
            now_s = self._clock.monotonic_s()
            for request in ended:
                self._end(request.request_id, request.get_finished_reason(), now_s)
            self._show_state(now_s)
        return ended

    def shutdown(self) -> None:
        """Stop the plugin's threads."""
        with self._barrier:
            self._subscriber.stop()
            self._exporter.stop()
        super().shutdown()

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)
        with self._barrier:
            self._meter.preempted(self._intake.ticket_of(request))

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

    def _begin_step(self, table: WeightTable, now_s: float) -> None:
        self.waiting.begin_step(table, now_s)
        if table.discipline is Discipline.APQ:
            self._order_running_by_weight(table)
        elif self._running_reordered:
            self._order_running_by_admission()

    def _end_step(self, output: SchedulerOutput, now_s: float) -> None:
        self.waiting.end_step()
        admitted = len(output.scheduled_new_reqs) + len(
            output.scheduled_cached_reqs.resumed_req_ids
        )
        if admitted:
            for request in self.running[-admitted:]:
                self._meter.dispatched(self._intake.ticket_of(request), now_s)
        self._show_state(now_s)

    def _order_running_by_weight(self, table: WeightTable) -> None:
        memory_short = self._memory_may_run_short()
        if not memory_short and not any(request.is_prefill_chunk for request in self.running):
            return  # One token each and memory for all: their order changes nothing.

        def rank(request: Request) -> tuple[bool, float]:
            return running_rank(
                table.policy(self._intake.ticket_of(request).task_class).weight,
                prefilling=request.is_prefill_chunk,
                memory_short=memory_short,
            )

        self.running.sort(key=rank)
        self._running_reordered = True

    def _order_running_by_admission(self) -> None:
        self.running.sort(key=lambda request: self._intake.ticket_of(request).admission)
        self._running_reordered = False

    def _memory_may_run_short(self) -> bool:
        """Whether this step could ask for more KV blocks than are free, at the very most."""
        per_group = -(-self.max_num_scheduled_tokens // self.block_size) + len(self.running)
        most = per_group * len(self.kv_cache_config.kv_cache_groups)
        return bool(self.kv_cache_manager.block_pool.get_num_free_blocks() < most)

    def _account_for(self, outputs: dict[int, EngineCoreOutputs], now_s: float) -> None:
        tickets, produced = self._intake.tickets, self._meter.produced
        for batch in outputs.values():
            for output in batch.outputs:
                ticket = tickets.get(output.request_id)
                if ticket is not None:
                    produced(ticket, len(output.new_token_ids), now_s)
                if output.finish_reason is not None:
                    self._end(output.request_id, output.finish_reason, now_s)
        self._show_state(now_s)

    def _end(self, request_id: str, reason: FinishReason, now_s: float) -> None:
        ticket = self._intake.tickets.pop(request_id, None)
        if ticket is not None:
            self._meter.finished(ticket, self._outcome(ticket, reason, now_s), now_s)

    def _outcome(self, ticket: Ticket, reason: FinishReason, now_s: float) -> Outcome:
        if reason is FinishReason.ERROR:
            return Outcome.FAILED
        # vLLM's front end aborts a request here when it found the text to stop at.
        found_its_text = ticket.stops_on_text and ticket.generated_tokens > 0
        if reason is FinishReason.ABORT and not found_its_text:
            return Outcome.ABORTED
        slo = self._in_force.at(now_s).policy(ticket.task_class).slo
        return judge(ticket, slo, now_s)

    def _show_state(self, now_s: float) -> None:
        """Hand the plugin's threads a new state: every so often, and when all is done."""
        if now_s < self._state_due_s and self._meter.live:
            return
        self._state_due_s = now_s + STATE_INTERVAL_S
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
        )


def _plugin_version() -> str:
    try:
        return version("trimtab")
    except PackageNotFoundError:
        return "uninstalled"
