"""``python -m benchmarks.urgent``: what an urgent request waits for when all slots are taken."""

import asyncio
import json
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.errors import BenchmarkError
from benchmarks.provenance import provenance
from benchmarks.urgent.run import Round, measure
from benchmarks.urgent.scenario import CONTENDERS, Contender, bound_s, rounds


def main(
    pairs: Annotated[int, typer.Option(min=1, help="Rounds on each engine.")] = 2,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the results here.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the prompts.")] = 1,
) -> None:
    """Urgent requests against an engine full of long work: Trimtab beside stock priority."""
    console = Console()
    try:
        done = asyncio.run(_run(console, pairs, seed))
    except BenchmarkError as error:
        console.print(f"{error}\nfix: {error.fix}")
        raise typer.Exit(1) from error
    console.print(_table(done))
    if json_file is not None:
        results = {name: _summary(own) for name, own in _by_contender(done).items()}
        json_file.write_text(json.dumps({**provenance(seed=seed), "contenders": results}, indent=2))


async def _run(console: Console, pairs: int, seed: int) -> list[Round]:
    order = rounds(pairs)
    folder = Path(tempfile.mkdtemp(prefix="trimtab-urgent-"))
    with Progress(console=console) as progress:
        task = progress.add_task("starting two engines", total=len(order))

        def on_round(contender: Contender) -> None:
            progress.update(task, description=contender.name)

        done: list[Round] = []
        async for one in measure(folder, order, seed=seed, on_round=on_round):
            done.append(one)
            progress.advance(task)
    shutil.rmtree(folder, ignore_errors=True)
    return done


def _by_contender(done: Sequence[Round]) -> Mapping[str, list[Round]]:
    return {
        contender.name: [one for one in done if one.contender == contender]
        for contender in CONTENDERS
    }


def _summary(done: Sequence[Round]) -> dict[str, object]:
    ttfts_s = [ttft_s for one in done for ttft_s in one.urgent_ttft_s]
    alone_s = max(one.alone_s for one in done)
    return {
        "urgent_ttft_p50_s": statistics.median(ttfts_s),
        "urgent_ttft_max_s": max(ttfts_s),
        "alone_s": alone_s,
        "bound_s": bound_s(alone_s),
        "tokens_per_s": statistics.mean(one.tokens_per_s for one in done),
        "preemptions": sum(one.preemptions for one in done),
        "rounds": [{**asdict(one), "contender": one.contender.name} for one in done],
    }


def _table(done: Sequence[Round]) -> Table:
    table = Table(title="TTFT of an urgent request with all slots taken by long work")
    for column in ("engine", "idle engine", "P50", "longest", "bound", "tokens/s", "preemptions"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    for name, own in _by_contender(done).items():
        summary = _summary(own)
        table.add_row(
            name,
            f"{summary['alone_s']:.2f} s",
            f"{summary['urgent_ttft_p50_s']:.2f} s",
            f"{summary['urgent_ttft_max_s']:.2f} s",
            f"{summary['bound_s']:.2f} s" if name == "trimtab" else "none",
            f"{summary['tokens_per_s']:.0f}",
            str(summary["preemptions"]),
        )
    return table


if __name__ == "__main__":
    typer.run(main)
