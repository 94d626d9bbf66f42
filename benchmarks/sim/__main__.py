"""``python -m benchmarks.sim``: calibrate to a real engine, and compare the simulator with it."""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.errors import BenchmarkError
from benchmarks.provenance import provenance
from benchmarks.sim.fidelity import Comparison, Fidelity, FidelityPlan
from benchmarks.sim.recording import SCHEDULER
from benchmarks.sim.report import fidelity_tables
from benchmarks.sim.sweep import Sweep, SweepPlan
from benchmarks.stack.cores import core_for_engine
from benchmarks.stack.engine import VllmEngine
from benchmarks.stack.snapshot_server import SnapshotServer
from training.errors import TrainingError
from training.simulator.calibration import Calibration
from training.simulator.traffic import REFERENCE

_Result = TypeVar("_Result")
Begin = Callable[[str], None]


def main(
    *,
    fidelity: Annotated[bool, typer.Option(help="Compare with a real engine.")] = False,
    calibrate: Annotated[
        Path | None, typer.Option(help="Sweep a real engine and write its calibration here.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="See that it works; too short to judge by.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the results here, too.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals and prompts.")] = 1,
) -> None:
    """Measure what the simulator is worth."""
    if calibrate is None and not fidelity:
        raise typer.BadParameter("say what to do: --fidelity, or --calibrate FILE")
    console = Console()
    results: dict[str, object] = {}
    try:
        if calibrate is not None:
            _calibrate(console, calibrate, quick=quick, seed=seed)
        if fidelity:
            found = _compare(console, quick=quick, seed=seed)
            console.print(fidelity_tables(found))
            results["fidelity"] = found.as_json()
    except BenchmarkError as error:
        console.print(f"{error}\nfix: {error.fix}")
        raise typer.Exit(1) from error
    except TrainingError as error:
        console.print(f"{error}\nfix: run it again, without --quick")
        raise typer.Exit(1) from error
    if json_file is not None:
        origin = provenance(seed=seed, program="python -m benchmarks.sim")
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps({**origin, **results}, indent=2) + "\n", encoding="utf-8")


def _calibrate(console: Console, path: Path, *, quick: bool, seed: int) -> None:
    def sweep(
        engine: VllmEngine, _snapshots: SnapshotServer, begin: Begin
    ) -> Coroutine[None, None, tuple[Calibration, float]]:
        plan = SweepPlan.quick() if quick else SweepPlan()
        return Sweep(engine, REFERENCE, seed, begin, plan).run()

    calibration, capacity = _with_engine(console, sweep)
    calibration.save(path)
    console.print(
        f"{path}: {calibration.steps} steps, mean error {calibration.step_error_ratio:.1%}; "
        f"the engine serves {capacity:.1f} requests of the reference mix per second"
    )


def _compare(console: Console, *, quick: bool, seed: int) -> Fidelity:
    def compare(
        engine: VllmEngine, snapshots: SnapshotServer, begin: Begin
    ) -> Coroutine[None, None, Fidelity]:
        plans = (
            (FidelityPlan.quick(), SweepPlan.quick()) if quick else (FidelityPlan(), SweepPlan())
        )
        return Comparison(engine, snapshots, REFERENCE, seed, begin, *plans).run()

    return _with_engine(console, compare)


def _with_engine(
    console: Console,
    work: Callable[[VllmEngine, SnapshotServer, Begin], Coroutine[None, None, _Result]],
) -> _Result:
    """Start an engine that records its steps, and end it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="trimtab-sim-"))
    # The simulator knows neither of these; what is compared must be the same on both sides.
    os.environ |= {
        "TRIMTAB_PREEMPTION__ENABLED": "false",
        "TRIMTAB_RESERVE__ENABLED": "false",
        "TRIMTAB_BREAKER__ENABLED": "false",
    }
    with ExitStack() as stack:
        core = stack.enter_context(core_for_engine())
        snapshots = stack.enter_context(SnapshotServer())
        engine = VllmEngine(
            folder,
            control_plane=snapshots.address,
            core=core,
            options=("--scheduler-cls", SCHEDULER),
        )
        stack.enter_context(engine.child)
        begin = stack.enter_context(_progress(console))
        begin("starting a vLLM engine")
        engine.wait_ready()
        result = asyncio.run(work(engine, snapshots, begin))
    shutil.rmtree(folder, ignore_errors=True)  # after a failure its logs stay
    return result


@contextmanager
def _progress(console: Console) -> Iterator[Begin]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)

        def begin(what: str) -> None:
            progress.update(task, description=what)
            if not console.is_terminal:
                console.print(what)

        yield begin


if __name__ == "__main__":
    typer.run(main)
