"""What happens to the queue between two steps: requests arrive, and clients leave."""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.request import Request, RequestStatus

from benchmarks.hook.pairs import Comparison, compare, take_turns
from benchmarks.hook.steps import heap_frozen
from benchmarks.hook.tables import weight_table
from benchmarks.stack.inprocess import RequestMaker, SchedulerSize, running_scheduler
from dataplane.scheduler import TrimtabScheduler

StockPolicy = Literal["fcfs", "priority"]

_CLASSES = 8
_PRIORITIES = 8
_MASS_ABORTS = 5


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One operation, timed per call, against stock vLLM under one of its policies."""

    operation: str
    stock_policy: StockPolicy
    waiting: int
    comparison: Comparison


def measure_queueing(
    stock_policy: StockPolicy, *, waiting: int, aborted: int, seed: int
) -> list[QueueRow]:
    """Let ``waiting`` requests arrive, then end ``aborted`` of them, one by one and at once."""
    size = SchedulerSize()
    table = weight_table(_CLASSES)
    rows: list[QueueRow] = []
    with (
        running_scheduler(AsyncScheduler, size, policy=stock_policy) as stock,
        running_scheduler(TrimtabScheduler, size, table=table) as plugin,
        heap_frozen(),
    ):
        one_by_one, *at_once = _leavers(waiting, aborted, seed)

        def row(operation: str, calls: int, timed: Callable[[Any], Callable[[], float]]) -> None:
            seconds = take_turns(timed(stock), timed(plugin), calls)
            comparison = compare(*seconds, seed=seed)
            rows.append(QueueRow(operation, stock_policy, waiting, comparison))

        row("one arrives", waiting, lambda scheduler: _arrivals(scheduler, waiting, seed))
        row("one leaves", aborted, lambda scheduler: _aborts(scheduler, one_by_one))
        together = f"{aborted:,} leave at once"
        row(together, len(at_once), lambda scheduler: _aborts(scheduler, at_once))
    return rows


def _arrivals(scheduler: Any, count: int, seed: int) -> Callable[[], float]:
    requests = iter(_requests(count, seed))
    return lambda: _seconds(scheduler.add_request, next(requests))


def _aborts(scheduler: Any, groups: Iterable[Any]) -> Callable[[], float]:
    remaining = iter(groups)
    return lambda: _seconds(
        scheduler.finish_requests, next(remaining), RequestStatus.FINISHED_ABORTED
    )


def _leavers(waiting: int, aborted: int, seed: int) -> list[list[str]]:
    """Who leaves one by one, then groups of as many who leave at once."""
    groups = min(_MASS_ABORTS + 1, waiting // aborted)
    chosen = random.Random(seed).sample(range(waiting), groups * aborted)
    names = [f"request-{number}" for number in chosen]
    return [names[i * aborted : (i + 1) * aborted] for i in range(groups)]


def _requests(count: int, seed: int) -> Iterator[Request]:
    maker = RequestMaker(SchedulerSize())
    rng = random.Random(seed)
    for number in range(count):
        yield maker.make(
            f"request-{number}",
            prompt_token_ids=rng.choices(range(256), k=32),
            max_tokens=32,
            task_class=f"class-{number % _CLASSES}",
            priority=rng.randrange(_PRIORITIES),
        )


def _seconds(call: Callable[..., object], *args: object) -> float:
    began_s = time.thread_time()
    call(*args)
    return time.thread_time() - began_s
