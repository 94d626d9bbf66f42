"""The demo's live table and its final tables."""

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from benchmarks.demo.scenario import CLASSES
from benchmarks.demo.state import DemoState
from benchmarks.results import ClassResult, PolicyResult

POLICIES = ("fcfs", "learned")


def live_view(state: DemoState) -> RenderableType:
    """Weights, queue and SLO attainment per class, as of now."""
    return Group(_headline(state), _live_table(state))


def _headline(state: DemoState) -> Text:
    parts = [f"now [bold]{state.policy or 'starting'}[/]"]
    snapshot = state.snapshot
    if snapshot is not None:
        parts.append(f"snapshot {snapshot.version}")
        parts.append(f"mode {snapshot.mode.value} ({escape(snapshot.mode_reason)})")
        parts.append(f"model version {snapshot.model_version or 'none'}")
    if snapshot is not None and not state.control_plane_answers:
        parts.append("[red]the control plane does not answer[/]")
    if state.reading is not None and state.reading.neutral:
        parts.append("[yellow]engine on neutral weights[/]")
    return Text.from_markup("   ".join(parts))


def _live_table(state: DemoState) -> Table:
    table = Table()
    table.add_column("class")
    for column in ("value", "TTFT SLO", "weight", "waiting", "SLO met fcfs", "SLO met learned"):
        table.add_column(column, justify="right")
    weights = {} if state.reading is None else state.reading.weights
    waiting = {} if state.reading is None else state.reading.waiting
    for kind in CLASSES:
        table.add_row(
            kind.name,
            f"{kind.value:g}",
            f"{kind.slo.ttft_s:g} s",
            _number(weights.get(kind.name), ".3f"),
            _number(waiting.get(kind.name), ".0f"),
            *(_attainment(state, policy, kind.name) for policy in POLICIES),
        )
    return table


def _attainment(state: DemoState, policy: str, task_class: str) -> str:
    tally = state.tallies.get((policy, task_class))
    return "-" if tally is None else f"{tally.met / tally.answered:.0%} of {tally.answered}"


def final_view(results: dict[str, PolicyResult], state: DemoState) -> Group:
    """The comparison at the end: per class, then in total."""
    applied = state.snapshots_applied
    return Group(
        _class_table(results),
        _total_table(results),
        Text(
            f"snapshots applied: {'-' if applied is None else applied}   "
            f"model version: {state.model_version or 'none'}"
        ),
    )


def _class_table(results: dict[str, PolicyResult]) -> Table:
    table = Table(title="Per class, the same arrivals under both")
    table.add_column("class")
    for column in ("n", "TTFT P50", "TTFT P99", "SLO met"):
        table.add_column(f"{column}\n{' -> '.join(POLICIES)}", justify="right")
    for kind in CLASSES:
        rows = [results[policy].classes[kind.name] for policy in POLICIES]
        table.add_row(kind.name, *_class_cells(rows))
    return table


def _class_cells(rows: list[ClassResult]) -> list[str]:
    def pair(values: list[float | None], spec: str) -> str:
        return " -> ".join(_number(value, spec) for value in values)

    return [
        str(rows[0].n),
        pair([row.ttft_p50_s for row in rows], ".2f") + " s",
        pair([row.ttft_p99_s for row in rows], ".2f") + " s",
        pair([row.slo_attainment for row in rows], ".0%"),
    ]


def _total_table(results: dict[str, PolicyResult]) -> Table:
    fcfs, learned = (results[policy] for policy in POLICIES)
    table = Table(title="In total")
    for column in ("", "fcfs", "learned", "ratio"):
        table.add_column(column, justify="left" if not column else "right")
    rows = [
        ("goodput, value/s", fcfs.goodput_value_per_s, learned.goodput_value_per_s),
        ("goodput, requests/s", fcfs.goodput_requests_per_s, learned.goodput_requests_per_s),
        ("tokens/s", fcfs.tokens_per_s, learned.tokens_per_s),
    ]
    for name, before, after in rows:
        ratio = f"{after / before:.2f}" if before else "-"
        table.add_row(name, f"{before:.2f}", f"{after:.2f}", ratio)
    table.add_row("failed requests", str(fcfs.failed), str(learned.failed), "")
    preemptions = [
        "-" if result.preemptions is None else str(result.preemptions) for result in (fcfs, learned)
    ]
    table.add_row("preemptions", *preemptions, "")
    recomputed = [
        "-" if result.recomputed_tokens is None else str(result.recomputed_tokens)
        for result in (fcfs, learned)
    ]
    table.add_row("tokens computed again", *recomputed, "")
    return table


def _number(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)
