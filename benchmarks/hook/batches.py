"""Synthetic batches: what the scheduler finds running and waiting at each step."""

import itertools
import random
from dataclasses import dataclass

from vllm.v1.request import Request

from benchmarks.stack.inprocess import EngineStep, InProcessEngine, RequestMaker

_WARM_UP_STEPS = 40
_NEVER = 100_000
"""More tokens than any run here generates."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One shape of load.

    Attributes:
        running: requests that hold a slot; together they fill all slots.
        waiting: requests kept waiting behind them.
        classes: task classes, taken in turn.
        prompt_tokens: of each request.
        output_tokens: of each request; None: none ends while it is measured, so no slot
            gets free and nothing is dispatched.
        step_tokens: the engine's token budget for a step.
    """

    name: str
    running: int = 256
    waiting: int = 0
    classes: int = 8
    prompt_tokens: int = 32
    output_tokens: int | None = None
    step_tokens: int = 8192


class BatchRun:
    """One engine under one batch. Every run of a batch sees the same requests."""

    def __init__(
        self, batch: Batch, engine: InProcessEngine, maker: RequestMaker, *, seed: int
    ) -> None:
        self._batch = batch
        self._engine = engine
        self._maker = maker
        self._rng = random.Random(seed)
        self._numbers = itertools.count()
        self.dispatched = 0
        self.tokens = 0

    def fill(self) -> None:
        """Bring the engine into the state that the batch describes."""
        batch = self._batch
        self._engine.add(self._request(self._first_output_tokens(i)) for i in range(batch.running))
        for _ in range(_WARM_UP_STEPS):
            self._engine.step()
            self._top_up()

    def step(self) -> float:
        """One turn of the engine. Returns the seconds that it spent in the scheduler."""
        step = self._engine.step()
        self._count(step)
        self._top_up()
        return step.schedule_s + step.update_s

    def _first_output_tokens(self, i: int) -> int:
        """Spreads the ends evenly over the steps, as they are on a server that has run long."""
        tokens = self._batch.output_tokens
        return _NEVER if tokens is None else 1 + i * tokens // self._batch.running

    def _count(self, step: EngineStep) -> None:
        if step.scheduled is not None:
            self.dispatched += len(step.scheduled.scheduled_new_reqs)
            self.tokens += step.scheduled.total_num_scheduled_tokens

    def _top_up(self) -> None:
        """Let as many arrive as have ended, and at the beginning all that are to wait."""
        batch = self._batch
        missing = batch.running + batch.waiting - len(self._engine.scheduler.requests)
        self._engine.add(self._request(batch.output_tokens or _NEVER) for _ in range(missing))

    def _request(self, output_tokens: int) -> Request:
        number = next(self._numbers)
        return self._maker.make(
            f"request-{number}",
            prompt_token_ids=self._rng.choices(range(256), k=self._batch.prompt_tokens),
            max_tokens=output_tokens,
            task_class=f"class-{number % self._batch.classes}",
        )
