"""A real engine to calibrate to and to compare with: started, measured and ended."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.sim.fidelity import PREEMPTION, Comparison, FidelityPlan
from benchmarks.sim.findings import Fidelity
from benchmarks.sim.recording import SCHEDULER
from benchmarks.sim.report import fidelity_tables
from benchmarks.sim.sweep import Sweep, SweepPlan
from benchmarks.stack.cores import core_for_engine
from benchmarks.stack.engine import VllmEngine
from benchmarks.stack.snapshot_server import SnapshotServer
from training.simulator.calibration import Calibration
from training.simulator.traffic import REFERENCE

_Result = TypeVar("_Result")
Begin = Callable[[str], None]


def calibrate(console: Console, path: Path, *, quick: bool, seed: int) -> None:
    """Sweep an engine, and write its calibration.

    Raises:
        BenchmarkError: the engine did not start, or a request failed.
        NotEnoughSteps: the sweep is too short.
        OSError: the file can't be written.
    """

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


def compare(console: Console, *, quick: bool, seed: int) -> dict[str, object]:
    """Sweep an engine, run it beside the simulator, and show both.

    Returns:
        The part of the result file.

    Raises:
        BenchmarkError: the engine did not start, a request failed, or a policy did not come
            into force.
        NotEnoughSteps: the sweep is too short.
    """

    def run(
        engine: VllmEngine, snapshots: SnapshotServer, begin: Begin
    ) -> Coroutine[None, None, Fidelity]:
        plans = (
            (FidelityPlan.quick(), SweepPlan.quick()) if quick else (FidelityPlan(), SweepPlan())
        )
        return Comparison(engine, snapshots, REFERENCE, seed, begin, *plans).run()

    found = _with_engine(console, run)
    console.print(fidelity_tables(found))
    return {"fidelity": found.as_json()}


def engine_environment() -> Mapping[str, str]:
    """What makes the plugin schedule as the simulator does.

    The simulator has neither KV reserve nor breaker, and the settings of preemption that are
    written here.
    """
    settings = {f"PREEMPTION__{name.upper()}": value for name, value in asdict(PREEMPTION).items()}
    settings |= {"RESERVE__ENABLED": False, "BREAKER__ENABLED": False}
    return {f"TRIMTAB_{name}": str(value) for name, value in settings.items()}


def _with_engine(
    console: Console,
    work: Callable[[VllmEngine, SnapshotServer, Begin], Coroutine[None, None, _Result]],
) -> _Result:
    """Start an engine that records its steps, and end it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="trimtab-sim-"))
    os.environ |= engine_environment()
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
