"""The plugin on vLLM's scheduler, on a clock that a test moves; every request is accounted for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from loopback_control_plane import HandClock
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from benchmarks.stack.inprocess import (
    InProcessEngine,
    RequestMaker,
    SchedulerSize,
    build_scheduler,
    put_in_force,
)
from dataplane.scheduler import TrimtabScheduler
from dataplane.weights import ClassPolicy, Discipline, WeightTable

STEP_S = 0.01

PROTECTIONS = ("BREAKER", "PREEMPTION", "RESERVE")

# Three slots, and memory for half of what three of the longest sequences need.
SMALL = SchedulerSize(
    max_num_seqs=3, max_num_batched_tokens=32, max_model_len=96, blocks=37, block_size=4
)
LONGEST_PROMPT_TOKENS = 48
LONGEST_OUTPUT_TOKENS = 48

# Without arrivals, aborts and snapshots, the first of the running requests computes its
# sequence anew in this many steps at most, whoever else is preempted; each slot may see one.
STEPS_TO_A_TOKEN = SMALL.max_num_seqs * (SMALL.max_model_len // SMALL.max_num_batched_tokens) + 2


@dataclass
class Asked:
    """A live request. ``tokens``: that came back so far."""

    task_class: str
    arrived_s: float
    max_tokens: int
    tokens: int = 0


@dataclass
class ScriptedEngine:
    """Every request that arrived is live, or ended exactly once.

    ``strict``: what holds requests back for the sake of others is off, so that each step
    must be work-conserving in the strictest sense.
    """

    kind: type[AsyncScheduler] = TrimtabScheduler
    size: SchedulerSize = SMALL
    strict: bool = False
    clock: HandClock = field(default_factory=HandClock)
    live: dict[str, Asked] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    schedule: list[dict[str, int]] = field(default_factory=list)
    table: WeightTable = field(default_factory=WeightTable.initial)
    steps_without_token: int = 0

    def __post_init__(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dataplane.scheduler.Clock", lambda: self.clock)
            for protection in PROTECTIONS if self.strict else ():
                patch.setenv(f"TRIMTAB_{protection}__ENABLED", "false")
            self.scheduler: Any = build_scheduler(self.kind, self.size)
        self._engine = InProcessEngine(
            self.scheduler, in_flight=self.size.in_flight, on_scheduled=self._scheduled
        )
        self._maker = RequestMaker(self.size)
        self._version = 0

    @property
    def is_idle(self) -> bool:
        return self._engine.is_idle

    def arrive(
        self, task_class: str, *, prompt_tokens: int, max_tokens: int, first_token: int = 0
    ) -> str:
        """Requests with the same first token share their prefix."""
        request_id = f"r{len(self.live) + len(self.ended)}"
        self.live[request_id] = Asked(task_class, self.clock.now_s, max_tokens)
        request = self._maker.make(
            request_id,
            prompt_token_ids=[first_token, *range(prompt_tokens - 1)],
            max_tokens=max_tokens,
            task_class=task_class,
            arrived_s=self.clock.wall_s(),
        )
        self._engine.add([request])
        self.steps_without_token = 0
        return request_id

    def abort(self, request_ids: Sequence[str]) -> None:
        aborted = {request.request_id for request in self._engine.abort(request_ids)}
        assert aborted == set(request_ids) & self.live.keys()
        for request_id in aborted:
            self._end(request_id)
        self.steps_without_token = 0

    def publish(
        self, policies: Mapping[str, ClassPolicy], discipline: Discipline = Discipline.APQ
    ) -> None:
        self._version += 1
        self.table = WeightTable(
            epoch=1,
            version=self._version,
            ttl_s=1e9,
            mode="rule",
            discipline=discipline,
            policies=policies,
            received_at_s=self.clock.now_s,
        )
        put_in_force(self.scheduler, self.table)
        self.steps_without_token = 0

    def step(self) -> None:
        """One turn of the engine, ``STEP_S`` long."""
        had_work = bool(self.live)
        step = self._engine.step()
        self.clock.now_s += STEP_S
        for output in step.outputs:
            asked = self.live[output.request_id]  # nothing comes of a request that ended
            asked.tokens += len(output.new_token_ids)
            if output.finish_reason is not None:
                assert asked.tokens == asked.max_tokens
                self._end(output.request_id)
        self.steps_without_token = (
            0 if step.outputs or not had_work else self.steps_without_token + 1
        )

    def drain(self) -> None:
        """Serve all that is live; one at a time would take no longer than this."""
        longest = self.size.max_model_len + STEPS_TO_A_TOKEN
        for _ in range((len(self.live) + 1) * longest):
            if self.is_idle:
                break
            self.step()
        assert not self.live
        assert self.is_idle

    def check(self) -> None:
        """What holds after whatever happened."""
        scheduler = self.scheduler
        queued = [*scheduler.running, *scheduler.waiting, *scheduler.kv_holding_waiting]
        assert sorted(request.request_id for request in queued) == sorted(self.live)
        assert len(scheduler.running) <= self.size.max_num_seqs
        assert self.steps_without_token <= STEPS_TO_A_TOKEN
        if self.kind is TrimtabScheduler:
            assert scheduler._barrier.faults == 0
            assert scheduler._meter.live == len(self.live)

    def close(self) -> None:
        self.scheduler.shutdown()

    def _end(self, request_id: str) -> None:
        del self.live[request_id]
        assert request_id not in self.ended
        self.ended.add(request_id)

    def _scheduled(self, step: SchedulerOutput) -> None:
        self.schedule.append(dict(step.num_scheduled_tokens))
        # A request whose last output is still on its way cannot come back yet.
        waiting = [
            request for request in self.scheduler.waiting if not request.num_stale_output_tokens
        ]
        if self.strict and self.table.version:
            self._check_nothing_fits(step, waiting)
            self._check_nobody_passes_the_overdue(step, waiting)

    def _check_nothing_fits(self, step: SchedulerOutput, waiting: Sequence[Request]) -> None:
        """Work conservation: what still waits lacks a slot, tokens or memory."""
        free_slots = self.size.max_num_seqs - len(self.scheduler.running)
        free_tokens = self.size.max_num_batched_tokens - step.total_num_scheduled_tokens
        # In a step that preempts, vLLM admits nobody.
        if not waiting or not free_slots or not free_tokens or step.preempted_req_ids:
            return
        free_blocks = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        assert any(-(-one.num_tokens // self.size.block_size) > free_blocks for one in waiting)

    def _check_nobody_passes_the_overdue(
        self, step: SchedulerOutput, waiting: Sequence[Request]
    ) -> None:
        """Past ``max_wait_s`` nobody goes first but who is further past it."""
        if self.table.discipline is Discipline.FCFS:
            return
        resumed = step.scheduled_cached_reqs.resumed_req_ids
        admitted = [new.req_id for new in step.scheduled_new_reqs] + list(resumed)
        for other in waiting:
            overdue_s = self._overdue_s(other.request_id)
            for request_id in admitted if overdue_s > 0 else ():
                # What was preempted comes first in its class.
                same_class = (
                    self.live[request_id].task_class == self.live[other.request_id].task_class
                )
                assert self._overdue_s(request_id) >= overdue_s or (
                    same_class and request_id in resumed
                )

    def _overdue_s(self, request_id: str) -> float:
        asked = self.live[request_id]
        max_wait_s = self.table.policy(asked.task_class).max_wait_s
        waited_s = self.clock.now_s - asked.arrived_s
        return 0.0 if max_wait_s is None else max(0.0, waited_s - max_wait_s)
