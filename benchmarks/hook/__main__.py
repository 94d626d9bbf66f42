"""``python -m benchmarks.hook``: what the plugin costs, in tables and as JSON."""

import json
import logging
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.hook.report import as_json, as_tables
from benchmarks.hook.run import MEASUREMENTS, Effort, HookResults, run
from benchmarks.provenance import provenance
from benchmarks.stack.process import free_port


def main(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the results here, too.")
    ] = None,
    *,
    quick: Annotated[bool, typer.Option(help="See that it works; too short to judge by.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts and of who leaves.")] = 1,
) -> None:
    """Time the plugin's scheduler against stock vLLM's, in turn, on the same batches."""
    logging.disable(logging.WARNING)  # vLLM says a screenful about each scheduler
    # Nobody listens there: the plugin's stream is up and searching, as on a bad day.
    os.environ["TRIMTAB_CONTROL_PLANE"] = f"127.0.0.1:{free_port()}"
    console = Console()
    results = _run(console, Effort.quick() if quick else Effort(), seed)
    console.print(as_tables(results))
    if json_file is not None:
        origin = provenance(seed=seed, program="python -m benchmarks.hook")
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps({**origin, **as_json(results)}, indent=2) + "\n")


def _run(console: Console, effort: Effort, seed: int) -> HookResults:
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    with progress:
        task = progress.add_task("starting", total=MEASUREMENTS)

        def begin(what: str) -> None:
            if progress.tasks[task].description != "starting":
                progress.advance(task)
            progress.update(task, description=what)

        return run(effort, seed=seed, begin=begin)


if __name__ == "__main__":
    typer.run(main)
