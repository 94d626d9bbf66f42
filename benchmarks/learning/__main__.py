"""``python -m benchmarks.learning``: what learned weights are worth, as tables and as JSON."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from benchmarks.errors import BenchmarkError
from benchmarks.learning.bundles import models_of
from benchmarks.learning.findings import Findings
from benchmarks.learning.journal import Journal
from benchmarks.learning.recorded import recorded_settings
from benchmarks.learning.report import as_json, as_tables
from benchmarks.learning.run import Comparison, Effort
from benchmarks.learning.settings import settings
from benchmarks.provenance import provenance
from training.errors import TrainingError
from training.regret.rounds import pool_of

_INTERRUPTED = 130


def main(
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="PATH or NAME=PATH of a bundle's folder, or NAME=@VERSION of the registry; the "
            "first is judged, others are rows. None: what a fresh registry starts with.",
        ),
    ] = None,
    traces: Annotated[
        Path | None, typer.Option(help="Folder with code.csv and conv.csv of Azure 2023.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="See that it works; too short to judge by.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the results here, too.")
    ] = None,
    units: Annotated[
        int | None, typer.Option(min=2, help="Seeds in each setting, instead of the usual number.")
    ] = None,
    journal: Annotated[
        Path, typer.Option(help="Results as they come in; a run that was stopped goes on.")
    ] = Path("mlruns/bench-learning.jsonl"),
    processes: Annotated[int, typer.Option(min=1, max=256, help="That simulate.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Of the search for static weights.")] = 1,
) -> None:
    """Compare learned weights with others in the simulator, each in the closed loop."""
    console = Console()
    effort = Effort.quick() if quick else Effort()
    if units is not None:
        effort = replace(effort, units=units)
    recorded = [] if traces is None else recorded_settings(traces, effort.duration_s)
    if not recorded:
        console.print("without recorded traces: there are none at --traces FOLDER")
    with tempfile.TemporaryDirectory(prefix="trimtab-") as scratch:
        try:
            models = models_of(model or (), Path(scratch))
        except BenchmarkError as error:
            console.print(f"{error}\nfix: {error.fix}")
            raise typer.Exit(1) from error
        comparison = Comparison(
            [*settings(effort.duration_s), *recorded],
            models,
            effort,
            seed=seed,
            journal=Journal(journal),
        )
        found = _run(console, comparison, processes, journal)
    console.print(as_tables(found))
    if json_file is not None:
        origin = provenance(seed=seed, program="python -m benchmarks.learning")
        json_file.parent.mkdir(parents=True, exist_ok=True)
        run = {"quick": quick, "units": effort.units, "recorded_traces": bool(recorded)}
        json_file.write_text(
            json.dumps({**origin, **run, **as_json(found)}, indent=2) + "\n", encoding="utf-8"
        )


def _run(console: Console, comparison: Comparison, processes: int, journal: Path) -> Findings:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress, pool_of(processes) as pool:

        def begin(what: str, parts: int) -> Callable[[], None]:
            task = progress.add_task(what, total=parts)
            return lambda: progress.advance(task)

        try:
            return comparison.run(pool, begin)
        except TrainingError as error:
            progress.stop()
            console.print(f"{error}\nfix: look at the files of --traces")
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            progress.stop()
            console.print(f"stopped; {journal} keeps what is complete, the same command goes on")
            raise typer.Exit(_INTERRUPTED) from None


if __name__ == "__main__":
    typer.run(main)
