"""The parts of a decision, each by itself: an index, a dispatch, a new snapshot."""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.hook.pairs import Seconds
from benchmarks.hook.steps import heap_frozen
from benchmarks.hook.tables import weight_table
from benchmarks.stack.inprocess import (
    RequestMaker,
    SchedulerSize,
    put_in_force,
    running_scheduler,
)
from controlplane.snapshot import ClassPolicy, Discipline, Mode, Snapshot
from controlplane.wire import snapshot_to_wire
from dataplane.scheduler import TrimtabScheduler
from dataplane.subscriber.messages import MAX_CLASSES, decode_snapshot
from dataplane.weights import WeightTable
from models.classes import Slo, TaskClass

_DISPATCHES_PER_STEP = 50
_STEP_S = 0.02


@dataclass(frozen=True, slots=True)
class IndexRate:
    """Indices computed to choose among the heads of all classes.

    Attributes:
        per_s: one core, median.
        batch_p50_us: one index for each class and the largest of them.
    """

    classes: int
    per_s: float
    batch_p50_us: float
    batch_p99_us: float


@dataclass(frozen=True, slots=True)
class SnapshotCost:
    """What a snapshot costs, medians.

    Attributes:
        apply_ms: of the scheduler's thread, from the moment the table is swapped until the
            first decision under it; every class has a request waiting.
        same_table_ms: the same when the table is the old one: what a step costs anyway.
        build_ms: of the stream's thread, to make the table and its neutral form.
        decode_ms: of the stream's thread, from bytes to a table; None: more classes than the
            protocol allows.
    """

    classes: int
    apply_ms: float
    same_table_ms: float
    build_ms: float
    decode_ms: float | None


def dispatch_us(*, classes: int, waiting: int) -> float:
    """Median time of peek and pop for one request, over steps that dispatch many."""
    table = weight_table(classes)
    with _queue(classes, waiting) as scheduler, heap_frozen():
        rounds = waiting // _DISPATCHES_PER_STEP
        return float(np.median([_drain(scheduler, table, i) for i in range(rounds)])) * 1e6


def index_rate(*, classes: int, rounds: int) -> IndexRate:
    """Choose among the heads of all classes, with nothing remembered of the last choice."""
    with _queue(classes, classes) as scheduler, heap_frozen():
        table = weight_table(classes)
        seconds = np.empty(rounds)  # [N]
        for i in range(rounds):
            scheduler.waiting.begin_step(table, _now_s(i))
            began_s = time.thread_time()
            scheduler.waiting.peek_request()
            seconds[i] = time.thread_time() - began_s
    p50_s, p99_s = np.percentile(seconds, (50, 99))
    return IndexRate(classes, float(classes / p50_s), float(p50_s) * 1e6, float(p99_s) * 1e6)


def snapshot_cost(*, classes: int, rounds: int) -> SnapshotCost:
    """Swap tables whose weights differ, and decide once under each."""
    versions = itertools.count(2)
    with _queue(classes, classes) as scheduler, heap_frozen():
        build_s, apply_s, same_s = np.empty((3, rounds))  # [N] each
        for i in range(rounds):
            began_s = time.thread_time()
            table = weight_table(classes, version=next(versions))
            put_in_force(scheduler, table)
            build_s[i] = time.thread_time() - began_s
            apply_s[i] = _decide(scheduler, table, 2 * i)
            same_s[i] = _decide(scheduler, table, 2 * i + 1)
    return SnapshotCost(
        classes,
        apply_ms=_median_ms(apply_s),
        same_table_ms=_median_ms(same_s),
        build_ms=_median_ms(build_s),
        decode_ms=_median_ms(_decoding_s(classes, rounds)) if classes <= MAX_CLASSES else None,
    )


def _decide(scheduler: Any, table: WeightTable, i: int) -> float:
    began_s = time.thread_time()
    scheduler.waiting.begin_step(table, _now_s(i))
    scheduler.waiting.peek_request()
    return time.thread_time() - began_s


def _decoding_s(classes: int, rounds: int) -> Seconds:
    message = snapshot_to_wire(_snapshot(classes))
    wire, parse = message.SerializeToString(), type(message).FromString
    seconds = np.empty(rounds)  # [N]
    for i in range(rounds):
        began_s = time.thread_time()
        decode_snapshot(parse(wire), 0.0)
        seconds[i] = time.thread_time() - began_s
    return seconds


def _snapshot(classes: int) -> Snapshot:
    return Snapshot(
        version=1,
        epoch=1,
        issued_at_unix_s=0.0,
        ttl_s=60.0,
        mode=Mode.RULE,
        mode_reason="measured",
        discipline=Discipline.APQ,
        classes=tuple(
            ClassPolicy(
                TaskClass(name=f"class-{number}", slo=Slo(ttft_s=1.0, tpot_s=0.1)),
                weight=1 / classes,
                default_weight=1 / classes,
            )
            for number in range(classes)
        ),
    )


def _drain(scheduler: Any, table: WeightTable, step: int) -> float:
    """Seconds per dispatch."""
    queue = scheduler.waiting
    queue.begin_step(table, _now_s(step))
    began_s = time.thread_time()
    for _ in range(_DISPATCHES_PER_STEP):
        queue.peek_request()
        queue.pop_request()
    return (time.thread_time() - began_s) / _DISPATCHES_PER_STEP


@contextmanager
def _queue(classes: int, waiting: int) -> Iterator[Any]:
    """A scheduler whose queue holds requests of each class in turn, and that never steps."""
    size = SchedulerSize()
    maker = RequestMaker(size)
    with running_scheduler(TrimtabScheduler, size, table=weight_table(classes)) as scheduler:
        for number in range(waiting):
            scheduler.add_request(
                maker.make(
                    f"request-{number}",
                    prompt_token_ids=[number % 256] * 16,
                    max_tokens=1,
                    task_class=f"class-{number % classes}",
                )
            )
        yield scheduler


def _now_s(step: int) -> float:
    return time.monotonic() + step * _STEP_S


def _median_ms(seconds: Seconds) -> float:
    return float(np.median(seconds)) * 1e3
