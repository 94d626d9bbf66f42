"""All measurements of the hook, in order."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.hook.batches import Batch
from benchmarks.hook.decisions import (
    IndexRate,
    SnapshotCost,
    dispatch_us,
    index_rate,
    snapshot_cost,
)
from benchmarks.hook.queueing import QueueRow, StockPolicy, measure_queueing
from benchmarks.hook.steps import StepRow, measure_batch

CLASSES = (8, 64)
INDEX_CLASSES = 64
SNAPSHOT_CLASSES = (256, 1000)
"""The most that the protocol carries, and what the goal is set for."""

STOCK_POLICIES: tuple[StockPolicy, ...] = ("fcfs", "priority")

BATCHES = (
    *(
        Batch("decode", waiting=waiting, classes=classes)
        for classes in CLASSES
        for waiting in (0, 1000, 10_000)
    ),
    Batch("turnover", waiting=0, output_tokens=32),
    Batch("turnover", waiting=1000, output_tokens=32),
    Batch("turnover", waiting=1000, output_tokens=32, classes=64),
    Batch("turnover", waiting=10_000, output_tokens=32),
    Batch(
        "prefill",
        running=64,
        waiting=100,
        prompt_tokens=2000,
        output_tokens=64,
        step_tokens=2048,
    ),
)
"""decode: all slots taken, none gets free. turnover: eight ends and eight dispatches a step.
prefill: long prompts use up the token budget of every step."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How often each thing is measured."""

    pairs: int = 600
    waiting: int = 10_000
    aborted: int = 1000
    rounds: int = 2000
    snapshots: int = 200

    @classmethod
    def quick(cls) -> "Effort":
        """Enough to see that it works; too little to judge by."""
        return cls(pairs=40, waiting=1000, aborted=100, rounds=100, snapshots=20)


@dataclass(frozen=True, slots=True)
class HookResults:
    """Everything that was measured. ``dispatch_us`` is by number of classes."""

    steps: list[StepRow]
    queueing: list[QueueRow]
    dispatch_us: dict[int, float]
    index: IndexRate
    snapshots: list[SnapshotCost]


MEASUREMENTS = len(BATCHES) + len(STOCK_POLICIES) + len(CLASSES) + 1 + len(SNAPSHOT_CLASSES)


def run(effort: Effort, *, seed: int, begin: Callable[[str], None]) -> HookResults:
    """Measure everything; ``begin`` is told what comes next, ``MEASUREMENTS`` times."""
    return HookResults(
        steps=[_step_row(batch, effort, seed, begin) for batch in BATCHES],
        queueing=[
            row for policy in STOCK_POLICIES for row in _queue_rows(policy, effort, seed, begin)
        ],
        dispatch_us={classes: _dispatch_us(classes, effort, begin) for classes in CLASSES},
        index=_index(effort, begin),
        snapshots=[_snapshot(classes, effort, begin) for classes in SNAPSHOT_CLASSES],
    )


def _step_row(batch: Batch, effort: Effort, seed: int, begin: Callable[[str], None]) -> StepRow:
    begin(f"{batch.name}, {batch.waiting} waiting, {batch.classes} classes")
    return measure_batch(batch, pairs=effort.pairs, seed=seed)


def _queue_rows(
    policy: StockPolicy, effort: Effort, seed: int, begin: Callable[[str], None]
) -> list[QueueRow]:
    begin(f"arrivals and aborts, against stock {policy}")
    return measure_queueing(policy, waiting=effort.waiting, aborted=effort.aborted, seed=seed)


def _dispatch_us(classes: int, effort: Effort, begin: Callable[[str], None]) -> float:
    begin(f"dispatches, {classes} classes")
    return dispatch_us(classes=classes, waiting=effort.waiting)


def _index(effort: Effort, begin: Callable[[str], None]) -> IndexRate:
    begin(f"indices, {INDEX_CLASSES} classes")
    return index_rate(classes=INDEX_CLASSES, rounds=effort.rounds)


def _snapshot(classes: int, effort: Effort, begin: Callable[[str], None]) -> SnapshotCost:
    begin(f"snapshots of {classes} classes")
    return snapshot_cost(classes=classes, rounds=effort.snapshots)
