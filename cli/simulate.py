"""`trimtab simulate`: what policies would make of a scenario or a trace, in seconds."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.provenance import provenance
from benchmarks.results import PolicyResult
from cli.failure import ExitCode, fail
from controlplane.config import load_config
from controlplane.errors import ConfigError
from models.classes import Slo, TaskClass
from training.errors import BadFile, RequestTooLarge
from training.simulator.calibration import REFERENCE_ENGINE, Calibration
from training.simulator.model import Fleet
from training.simulator.policies import POLICIES
from training.simulator.regimes import REGIMES, draw_scenario
from training.simulator.scenario import Scenario
from training.simulator.traces import read_trace, workload_from_traces
from training.simulator.traffic import REFERENCE

PLOT_SUFFIXES = (".pdf", ".png", ".svg")
MOST_REQUESTS = 1_000_000
TRACE_TTFT_SLO_S = 2.0
"""Of a trace's class that no configuration describes."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """How large the scenario is. Attributes: load: relative to the fleet's capacity."""

    load: float
    duration_s: float
    engines: int
    seed: int


def simulate(
    *,
    scenario: Annotated[str | None, typer.Option(help=f"One of {', '.join(REGIMES)}.")] = None,
    trace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[CLASS=]FILE", help="Recorded arrivals, .csv or .jsonl; may be repeated."
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"One of {', '.join(POLICIES)}, or all; may be repeated. By default fcfs and apq."
        ),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="An engine's, from `python -m benchmarks.sim`.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="The control plane's YAML file: describes a trace's classes."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the results here, too.")
    ] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="Draw them, as .png, .svg or .pdf.")
    ] = None,
    load: Annotated[
        float, typer.Option(min=0.01, max=100, help="Of a scenario, relative to the capacity.")
    ] = 0.9,
    duration: Annotated[
        float, typer.Option(min=1, max=86400 * 7, help="Of a scenario, in seconds.")
    ] = 600.0,
    engines: Annotated[int, typer.Option(min=1, max=1000, help="Equal ones, load balanced.")] = 1,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the scenario.")] = 1,
    time_scale: Annotated[
        float,
        typer.Option(min=1e-4, max=1e4, help="Factor on a trace's times; 0.5 doubles its load."),
    ] = 1.0,
    token_scale: Annotated[
        float, typer.Option(min=1e-4, max=1e4, help="Factor on a trace's lengths.")
    ] = 1.0,
) -> None:
    """Compare policies on simulated engines: one table of all classes."""
    _require_writable(json_file, plot_file)
    if (scenario is None) == (not trace):
        fail(
            "either a scenario or traces are needed, not both",
            fix="pass --scenario NAME or --trace FILE",
            code=ExitCode.USAGE,
        )
    names = _policy_names(policy or ["fcfs", "apq"])
    engine = _calibration(calibration)
    sizing = Sizing(load, duration, engines, seed)
    if trace:
        what = _recorded(trace, config, time_scale=time_scale, token_scale=token_scale)
    else:
        what = _drawn(str(scenario), engine, sizing)
    console = Console()
    results = _run(console, what, engine, engines, names)
    console.print(f"{what.name}: {len(what.workload):,} requests in {what.duration_s:,.0f} s")
    console.print(results_table(results, what.workload.classes))
    console.print(totals_table(results))
    if json_file is not None:
        _write_json(json_file, results, what, engine, sizing)
    if plot_file is not None:
        _plot(plot_file, results, what)


def results_table(results: Mapping[str, PolicyResult], classes: Sequence[TaskClass]) -> Table:
    """Per class and policy, the policies of a class below each other; times in seconds."""
    # Narrow enough for a terminal of 80 columns.
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("class\n(TTFT objective)")
    table.add_column("\npolicy")
    headings = ("\nn", "TTFT\nP50", "\nP99", "e2e\nP50", "\nP99", "longest\nwait", "SLO\nmet")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for kind in classes:
        for name, result in results.items():
            own = result.classes[kind.name]
            first = name == next(iter(results))
            table.add_row(
                f"{kind.name} ({kind.slo.ttft_s:g} s)" if first else "",
                name,
                f"{own.n}",
                *(
                    _seconds(value)
                    for value in (
                        own.ttft_p50_s,
                        own.ttft_p99_s,
                        own.e2e_p50_s,
                        own.e2e_p99_s,
                        own.longest_wait_s,
                    )
                ),
                "-" if own.slo_attainment is None else f"{own.slo_attainment:.1%}",
            )
        table.add_section()
    return table


def totals_table(results: Mapping[str, PolicyResult]) -> Table:
    """What each policy makes of all classes together."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("policy")
    for heading in ("value/s within SLO", "tokens/s", "failed", "preemptions", "recomputed tokens"):
        table.add_column(heading, justify="right")
    for name, result in results.items():
        table.add_row(
            name,
            f"{result.goodput_value_per_s:.2f}",
            f"{result.tokens_per_s:,.0f}",
            f"{result.failed:,}",
            _count(result.preemptions),
            _count(result.recomputed_tokens),
        )
    return table


def _require_writable(json_file: Path | None, plot_file: Path | None) -> None:
    for file, option in ((json_file, "--json"), (plot_file, "--plot")):
        if file is not None and not file.resolve().parent.is_dir():
            fail(
                f"{file.parent} is no folder, so {file.name} can't be written there",
                fix=f"create it, or name another file after {option}",
                code=ExitCode.USAGE,
            )
    if plot_file is not None and plot_file.suffix.lower() not in PLOT_SUFFIXES:
        fail(
            f"no plot can be written as {plot_file.name}",
            fix=f"let its name end in one of {', '.join(PLOT_SUFFIXES)}",
            code=ExitCode.USAGE,
        )


def _policy_names(asked: Sequence[str]) -> list[str]:
    names = list(POLICIES) if "all" in asked else list(dict.fromkeys(asked))
    for name in names:
        if name not in POLICIES:
            fail(
                f"there is no policy {name!r}",
                fix=f"choose from {', '.join(POLICIES)}, all",
                code=ExitCode.USAGE,
            )
    return names


def _calibration(path: Path | None) -> Calibration:
    if path is None:
        return REFERENCE_ENGINE
    try:
        return Calibration.load(path)
    except BadFile as error:
        fail(
            str(error),
            fix="write a new one: python -m benchmarks.sim --calibrate FILE",
            code=ExitCode.USAGE,
        )


def _drawn(name: str, calibration: Calibration, sizing: Sizing) -> Scenario:
    from training.simulator.play import capacity_requests_per_s  # noqa: PLC0415 - numba

    if name not in REGIMES:
        fail(
            f"there is no scenario {name!r}",
            fix=f"choose from {', '.join(REGIMES)}",
            code=ExitCode.USAGE,
        )
    capacity = capacity_requests_per_s(Fleet(calibration.engine, sizing.engines), REFERENCE)
    requests_per_s = sizing.load * capacity
    if not 1 <= requests_per_s * sizing.duration_s <= MOST_REQUESTS:
        fail(
            f"{requests_per_s:.3g} requests/s for {sizing.duration_s:g} s are not between 1 and "
            f"{MOST_REQUESTS:,} requests",
            fix="choose another --load, --duration or number of --engines",
            code=ExitCode.USAGE,
        )
    return draw_scenario(
        name,
        REFERENCE,
        requests_per_s=requests_per_s,
        duration_s=sizing.duration_s,
        seed=sizing.seed,
    )


def _recorded(
    traces: Sequence[str], config: Path | None, *, time_scale: float, token_scale: float
) -> Scenario:
    described = _described(config)
    recorded = []
    for text in traces:
        named = re.fullmatch(r"([A-Za-z0-9_.-]{1,64})=(.+)", text)
        file = Path(named[2] if named else text)
        kind = _task_class(named[1] if named else file.stem, described, config)
        try:
            recorded.append((kind, read_trace(file)))
        except BadFile as error:
            fail(str(error), fix="correct the file, or leave it out", code=ExitCode.USAGE)
    workload = workload_from_traces(recorded, time_scale=time_scale, token_scale=token_scale)
    return Scenario.steady(", ".join(traces), workload)


def _described(config: Path | None) -> dict[str, TaskClass]:
    if config is None:
        return {}
    try:
        return {kind.name: kind for kind in load_config(config).task_classes}
    except ConfigError as error:
        fail(str(error), fix=f"correct {config}", code=ExitCode.USAGE)


def _task_class(name: str, described: Mapping[str, TaskClass], config: Path | None) -> TaskClass:
    if config is None:
        return TaskClass(name, Slo(ttft_s=TRACE_TTFT_SLO_S))
    if name not in described:
        fail(
            f"{config} has no class {name!r}",
            fix=f"name one of {', '.join(described)} before the file: --trace CLASS=FILE",
            code=ExitCode.USAGE,
        )
    return described[name]


def _run(
    console: Console,
    scenario: Scenario,
    calibration: Calibration,
    engines: int,
    names: Sequence[str],
) -> dict[str, PolicyResult]:
    from benchmarks.sim.simulated import simulated_result  # noqa: PLC0415 - numba

    fleet = Fleet(calibration.engine, engines, declares_output=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    results = {}
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("compiling", total=len(names))
        for name in names:
            progress.update(task, description=name)
            try:
                results[name] = simulated_result(scenario, fleet, POLICIES[name])
            except RequestTooLarge as error:
                fail(
                    str(error),
                    fix="use a smaller --token-scale, or the --calibration of a larger engine",
                    code=ExitCode.USAGE,
                )
            progress.advance(task)
    return results


def _write_json(
    path: Path,
    results: Mapping[str, PolicyResult],
    scenario: Scenario,
    calibration: Calibration,
    sizing: Sizing,
) -> None:
    document = {
        **provenance(seed=sizing.seed),
        "scenario": scenario.name,
        "duration_s": scenario.duration_s,
        "engines": sizing.engines,
        "requests": len(scenario.workload),
        "calibration": {"hash": calibration.hash, "origin": calibration.origin},
        "policies": {name: result.as_json() for name, result in results.items()},
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _plot(path: Path, results: Mapping[str, PolicyResult], scenario: Scenario) -> None:
    """Two panels of bars: SLO attainment, and P99 of the TTFT relative to its objective."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - takes a second

    classes = scenario.workload.classes
    figure = Figure(figsize=(9, 6), layout="constrained")
    met, late = figure.subplots(2, sharex=True)
    width = 0.8 / len(results)
    for index, (name, result) in enumerate(results.items()):
        at = [place + (index - (len(results) - 1) / 2) * width for place in range(len(classes))]
        own = [result.classes[kind.name] for kind in classes]
        met.bar(at, [row.slo_attainment or 0.0 for row in own], width, label=name)
        ratios = [
            (row.ttft_p99_s or 0.0) / kind.slo.ttft_s
            for row, kind in zip(own, classes, strict=True)
        ]
        late.bar(at, ratios, width)
    met.set(title=scenario.name, ylabel="requests within their SLO", ylim=(0, 1))
    met.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.02), fontsize="small")
    late.axhline(1.0, color="black", linewidth=0.8)
    late.set(ylabel="P99 of TTFT / objective", yscale="log")
    late.set_xticks(range(len(classes)), [kind.name for kind in classes])
    figure.savefig(path)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
