"""``python -m benchmarks.sim``: what the simulator is worth, as tables and as JSON."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.errors import BenchmarkError
from benchmarks.provenance import provenance
from benchmarks.sim.speed import Effort, measure_speed
from training.errors import TrainingError


def main(
    *,
    speed: Annotated[bool, typer.Option(help="Measure how fast it is.")] = False,
    fidelity: Annotated[bool, typer.Option(help="Compare with a real engine.")] = False,
    calibrate: Annotated[
        Path | None, typer.Option(help="Sweep a real engine and write its calibration here.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="See that it works; too short to judge by.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the results here, too.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals, lengths and prompts.")] = 1,
) -> None:
    """Measure what the simulator is worth."""
    if not (speed or fidelity or calibrate):
        raise typer.BadParameter("say what to do: --speed, --fidelity, or --calibrate FILE")
    console = Console()
    results: dict[str, object] = {}
    if speed:
        found = measure_speed(Effort.quick() if quick else Effort(), seed)
        console.print(found.as_table())
        results |= found.as_json()
    if fidelity or calibrate:
        results |= _beside_an_engine(console, calibrate, fidelity=fidelity, quick=quick, seed=seed)
    if json_file is not None:
        origin = provenance(seed=seed, program="python -m benchmarks.sim")
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps({**origin, **results}, indent=2) + "\n", encoding="utf-8")


def _beside_an_engine(
    console: Console, calibrate: Path | None, *, fidelity: bool, quick: bool, seed: int
) -> dict[str, object]:
    """The parts of the result file."""
    from benchmarks.sim import beside  # noqa: PLC0415 - vLLM takes seconds

    try:
        if calibrate is not None:
            beside.calibrate(console, calibrate, quick=quick, seed=seed)
        return beside.compare(console, quick=quick, seed=seed) if fidelity else {}
    except BenchmarkError as error:
        console.print(f"{error}\nfix: {error.fix}")
        raise typer.Exit(1) from error
    except TrainingError as error:
        console.print(f"{error}\nfix: run it again, without --quick")
        raise typer.Exit(1) from error


if __name__ == "__main__":
    typer.run(main)
