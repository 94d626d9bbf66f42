"""The comparison as tables."""

from rich.console import Group
from rich.table import Table

from benchmarks.sim.comparison import (
    LATENCIES,
    PERCENTILES,
    mean_errors,
    rank_correlation,
    worst_errors,
)
from benchmarks.sim.fidelity import Fidelity

GOALS = {
    "step_mape": 0.10,
    "p50": 0.10,
    "p90": 0.15,
    "p99": 0.20,
    "throughput_err": 0.05,
}
GOAL_TAU = 0.8


def fidelity_tables(found: Fidelity) -> Group:
    """What was found beside what is aimed for, then every class and every policy."""
    return Group(_summary(found), _latencies(found), _policies(found))


def _summary(found: Fidelity) -> Table:
    table = Table(title="The simulator beside the real engine: relative errors")
    table.add_column("")
    for column in ("mean", "worst", "goal"):
        table.add_column(column, justify="right")
    summary = found.as_json()
    steps = found.step_errors.values()
    table.add_row(
        "time of a step",
        f"{summary['step_mape']:.1%}",
        f"{max(steps):.1%}",
        _goal("step_mape"),
    )
    means, worst = mean_errors(found.rows), worst_errors(found.rows)
    for latency in LATENCIES:
        for percentile in PERCENTILES:
            name = f"{latency}_p{percentile}_err"
            table.add_row(
                f"{latency} P{percentile}",
                _ratio(means[name]),
                _ratio(worst[name]),
                _goal(f"p{percentile}"),
            )
    table.add_row(
        "saturated throughput", f"{summary['throughput_err']:.1%}", "", _goal("throughput_err")
    )
    tau = rank_correlation(found.real_value_ratio, found.simulated_value_ratio)
    table.add_row(
        "ranking of policies, Kendall's tau",
        "-" if tau is None else f"{tau:.2f}",
        "",
        f">= {GOAL_TAU:g}",
    )
    return table


def _latencies(found: Fidelity) -> Table:
    table = Table(title="Every class: simulated and real seconds")
    for column in ("load", "class", "n", "", "simulated", "real", "error"):
        table.add_column(column, justify="left" if column in ("class", "") else "right")
    for row in found.rows:
        table.add_row(
            f"{row.load:g}",
            row.task_class,
            f"{row.requests}",
            f"{row.latency} P{row.percentile}",
            f"{row.simulated_s:.3f}",
            f"{row.real_s:.3f}",
            f"{row.error_ratio:.1%}",
        )
    return table


def _policies(found: Fidelity) -> Table:
    table = Table(title="Every policy: share of the value that met its SLO")
    table.add_column("policy")
    table.add_column("simulated", justify="right")
    table.add_column("real", justify="right")
    for name in sorted(found.real_value_ratio, key=found.real_value_ratio.__getitem__):
        table.add_row(
            name,
            f"{found.simulated_value_ratio[name]:.1%}",
            f"{found.real_value_ratio[name]:.1%}",
        )
    return table


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _goal(name: str) -> str:
    return f"<= {GOALS[name]:.0%}"
