"""The results as tables and as JSON."""

from dataclasses import asdict

from rich.box import SIMPLE
from rich.console import Group
from rich.table import Table

from benchmarks.hook.pairs import Comparison
from benchmarks.hook.queueing import QueueRow
from benchmarks.hook.run import CLASSES, HookResults
from benchmarks.hook.steps import StepRow

GOAL_RATIO = 1.02
GOAL_DISPATCH_US = 2.0
GOAL_INDEX_PER_S = 1e6
GOAL_INDEX_P99_US = 80.0
GOAL_APPLY_MS = 1.0


def as_json(results: HookResults) -> dict[str, object]:
    """Everything, in the form that result files have."""
    return {
        "rows": [_step_json(row) for row in results.steps],
        "queueing": [_queue_json(row) for row in results.queueing],
        "dispatch_us": results.dispatch_us[CLASSES[0]],
        "dispatch_us_by_classes": {str(n): us for n, us in results.dispatch_us.items()},
        "index_per_s": results.index.per_s,
        "index": asdict(results.index),
        "snapshot_apply_ms": results.snapshots[-1].apply_ms,
        "snapshots": [asdict(cost) for cost in results.snapshots],
    }


def as_tables(results: HookResults) -> Group:
    """For a terminal."""
    return Group(_steps(results.steps), _queueing(results.queueing), _decisions(results))


def _step_json(row: StepRow) -> dict[str, object]:
    return {
        "batch": row.batch.name,
        "running": row.batch.running,
        "waiting": row.batch.waiting,
        "classes": row.batch.classes,
        **asdict(row.comparison),
        "dispatched_per_step": row.dispatched_per_step,
        "tokens_per_step": row.tokens_per_step,
        "metrics_thread_ratio": row.metrics_thread_ratio,
        "plugin_faults": row.faults,
    }


def _queue_json(row: QueueRow) -> dict[str, object]:
    return {
        "operation": row.operation,
        "stock_policy": row.stock_policy,
        "waiting": row.waiting,
        **asdict(row.comparison),
    }


def _steps(rows: list[StepRow]) -> Table:
    table = _table(f"Microseconds of a step in the scheduler; goal: a ratio of {GOAL_RATIO:g}")
    table.add_column("batch", no_wrap=True)
    for column in ("run", "wait", "classes", "ends", *_COMPARISON):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        batch = row.batch
        table.add_row(
            batch.name,
            f"{batch.running}",
            f"{batch.waiting}",
            f"{batch.classes}",
            f"{row.dispatched_per_step:.1f}",
            *_cells(row.comparison),
        )
    return table


def _queueing(rows: list[QueueRow]) -> Table:
    table = _table("Microseconds of a call between steps")
    table.add_column("what happens", no_wrap=True)
    table.add_column("against")
    for column in ("wait", *_COMPARISON):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.operation, row.stock_policy, f"{row.waiting}", *_cells(row.comparison))
    return table


def _decisions(results: HookResults) -> Table:
    table = _table("The parts of a decision")
    table.add_column("")
    table.add_column("measured", justify="right")
    table.add_column("goal", justify="right")
    table.add_row("faults of the plugin", f"{sum(row.faults for row in results.steps)}", "0")
    busiest = max(row.metrics_thread_ratio for row in results.steps)
    table.add_row("metrics thread, of one core", f"{busiest:.1%}", "")
    for classes, microseconds in results.dispatch_us.items():
        goal = f"< {GOAL_DISPATCH_US:g} us" if classes == CLASSES[0] else ""
        table.add_row(f"dispatch, {classes} classes", f"{microseconds:.2f} us", goal)
    index = results.index
    table.add_row("indices per second", f"{index.per_s:,.0f}", f">= {GOAL_INDEX_PER_S:,.0f}")
    table.add_row(
        f"indices of {index.classes} classes, P99",
        f"{index.batch_p99_us:.1f} us",
        f"< {GOAL_INDEX_P99_US:g} us",
    )
    for cost in results.snapshots:
        name = f"snapshot of {cost.classes:,} classes"
        table.add_row(f"{name}, applied", f"{cost.apply_ms:.3f} ms", f"< {GOAL_APPLY_MS:g} ms")
        table.add_row("  the same step without it", f"{cost.same_table_ms:.3f} ms", "")
        table.add_row("  built, by the stream's thread", f"{cost.build_ms:.2f} ms", "")
        if cost.decode_ms is not None:
            table.add_row("  decoded, by the stream's thread", f"{cost.decode_ms:.2f} ms", "")
    return table


_COMPARISON = ("stock", "plugin", "ratio", "95%")


def _table(title: str) -> Table:
    """One that fits into 80 columns."""
    return Table(title=title, box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))


def _cells(comparison: Comparison) -> tuple[str, str, str, str]:
    low, high = comparison.ratio_ci
    return (
        _microseconds(comparison.stock_us),
        _microseconds(comparison.plugin_us),
        f"{comparison.ratio:.3f}",
        f"{low:.3f}-{high:.3f}",
    )


def _microseconds(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"  # noqa: PLR2004 - three digits tell enough
