"""The comparison as tables."""

from rich.console import Group
from rich.table import Table

from benchmarks.sim.comparison import LATENCIES, PERCENTILES, LatencyRow, mean_errors, worst_errors
from benchmarks.sim.findings import FOLLOWED, SWEPT, Errors, Fidelity

GOALS = {
    "step_mape": 0.10,
    "p50": 0.10,
    "p90": 0.15,
    "p99": 0.20,
    "throughput_err": 0.05,
}
GOAL_TAU = 0.8
_STEP, _THROUGHPUT = "time of a step", "saturated throughput"
_RANKING = "ranking of policies, tau"


def fidelity_tables(found: Fidelity) -> Group:
    """What was found beside what is aimed for, then every class and every policy."""
    return Group(_summary(found), _latencies(found), _policies(found))


def _summary(found: Fidelity) -> Table:
    table = Table(
        title="The simulator beside the real engine: relative errors",
        caption="as swept: at the speed of the calibration; followed: at the speed of each run",
    )
    table.add_column("")
    for column in ("as swept", "worst", "followed", "worst", "goal"):
        table.add_column(column, justify="right")
    swept, followed = _cells(found.errors(SWEPT)), _cells(found.errors(FOLLOWED))
    for name, goal in _goals().items():
        table.add_row(name, *swept[name], *followed[name], goal)
    return table


def _cells(errors: Errors) -> dict[str, tuple[str, str]]:
    """Mean and worst, by what they are of."""
    steps = list(errors.steps.values())
    means, worst = mean_errors(errors.rows), worst_errors(errors.rows)
    tau = errors.kendall_tau
    return {
        _STEP: (_ratio(sum(steps) / len(steps)), _ratio(max(steps))),
        **{
            f"{latency} P{percentile}": (_ratio(means[name]), _ratio(worst[name]))
            for latency in LATENCIES
            for percentile in PERCENTILES
            for name in [f"{latency}_p{percentile}_err"]
        },
        _THROUGHPUT: (_ratio(errors.throughput_error_ratio), ""),
        _RANKING: ("-" if tau is None else f"{tau:.2f}", ""),
    }


def _goals() -> dict[str, str]:
    return {
        _STEP: _goal("step_mape"),
        **{
            f"{latency} P{percentile}": _goal(f"p{percentile}")
            for latency in LATENCIES
            for percentile in PERCENTILES
        },
        _THROUGHPUT: _goal("throughput_err"),
        _RANKING: f">= {GOAL_TAU:g}",
    }


def _latencies(found: Fidelity) -> Table:
    table = Table(title="Every class: real seconds, and simulated ones with their error")
    for column in ("load", "class", "n", "", "real", "as swept", "", "followed", ""):
        table.add_column(column, justify="left" if column == "class" else "right")
    both = zip(found.errors(SWEPT).rows, found.errors(FOLLOWED).rows, strict=True)
    for swept, followed in both:
        table.add_row(
            f"{swept.load:g}",
            swept.task_class,
            f"{swept.requests}",
            f"{swept.latency} P{swept.percentile}",
            f"{swept.real_s:.3f}",
            *(cell for row in (swept, followed) for cell in _simulated(row)),
        )
    return table


def _simulated(row: LatencyRow) -> tuple[str, str]:
    return f"{row.simulated_s:.3f}", f"{row.error_ratio:.0%}"


def _policies(found: Fidelity) -> Table:
    table = Table(title="Every policy: loss, by which they are ranked, and value that met its SLO")
    table.add_column("policy")
    for column in ("real", "as swept", "followed", "real", "as swept", "followed", "slower"):
        table.add_column(column, justify="right")
    swept, followed = found.errors(SWEPT), found.errors(FOLLOWED)
    losses = (found.real_loss, swept.loss, followed.loss)
    values = (found.real_value_ratio, swept.value_ratio, followed.value_ratio)
    for name in sorted(found.real_loss, key=found.real_loss.__getitem__):
        table.add_row(
            name,
            *(f"{loss[name]:.3f}" for loss in losses),
            *(f"{ratio[name]:.1%}" for ratio in values),
            f"{found.slowness[name]:.2f}x",
        )
    return table


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _goal(name: str) -> str:
    return f"<= {GOALS[name]:.0%}"
