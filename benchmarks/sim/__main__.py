"""``python -m benchmarks.sim``: what the simulator is worth, as a table and as JSON."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.provenance import provenance
from benchmarks.sim.speed import Effort, measure_speed


def main(
    *,
    speed: Annotated[bool, typer.Option(help="Measure how fast it is.")] = False,
    quick: Annotated[bool, typer.Option(help="See that it works; too short to judge by.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the results here, too.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals and lengths.")] = 1,
) -> None:
    """Measure what the simulator is worth."""
    console = Console()
    results: dict[str, object] = {}
    if speed:
        found = measure_speed(Effort.quick() if quick else Effort(), seed)
        console.print(found.as_table())
        results |= found.as_json()
    if json_file is not None:
        origin = provenance(seed=seed, program="python -m benchmarks.sim")
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps({**origin, **results}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
