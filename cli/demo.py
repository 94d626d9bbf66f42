"""`trimtab demo`: watch a real engine being steered."""

import asyncio
import json
import shutil
import signal
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.demo.display import final_view, live_view
from benchmarks.demo.parts import Parts, running_parts
from benchmarks.demo.run import policy_results, run_demo
from benchmarks.demo.state import DemoState
from benchmarks.errors import BenchmarkError
from benchmarks.provenance import provenance
from benchmarks.results import PolicyResult
from cli.failure import ExitCode, fail

_INTERRUPTED = 130
_SHORTEST_S = 20.0


def demo(
    duration: Annotated[
        float, typer.Option(min=_SHORTEST_S, help="Seconds of traffic, half under each policy.")
    ] = 120.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the results here, too.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals and prompts.")] = 1,
    mlruns: Annotated[Path, typer.Option(help="Folder of the MLflow store.")] = Path("mlruns"),
) -> None:
    """Steer a real vLLM engine: fcfs against learned weights on the same arrivals.

    Starts Prometheus, the control plane and a vLLM engine with a tiny model on
    free loopback ports, sends mixed traffic with bursts, and ends all of them.
    """
    if json_file is not None and not json_file.resolve().parent.is_dir():
        fail(
            f"{json_file.parent} is no folder, so {json_file.name} can't be written there",
            fix="create it, or name another file after --json",
            code=ExitCode.USAGE,
        )
    console = Console()
    state = DemoState()
    folder = Path(tempfile.mkdtemp(prefix="trimtab-demo-"))
    try:
        course = _run(console, state, folder, mlruns.resolve(), duration_s=duration, seed=seed)
        completed = asyncio.run(_until_signal(course))
    except BenchmarkError as error:
        fail(str(error), fix=error.fix)
    results = policy_results(state.finished)
    if results:
        console.print(final_view(results, state))
    if results and json_file is not None:
        _write_json(json_file, results, state, seed=seed)
        console.print(f"results in {json_file}")
    if not completed:
        console.print(f"stopped early; logs in {folder}")
        raise typer.Exit(_INTERRUPTED)
    shutil.rmtree(folder, ignore_errors=True)


async def _run(
    console: Console,
    state: DemoState,
    folder: Path,
    mlruns: Path,
    *,
    duration_s: float,
    seed: int,
) -> None:
    """Run the demo under a live view."""
    with running_parts(folder, mlruns) as parts:
        _say_what_to_try(console, parts)
        progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        task = progress.add_task("starting", total=None)

        def view() -> Group:
            progress.update(task, completed=state.answered, total=state.expected or None)
            return Group(live_view(state), progress)

        def on_stage(stage: str) -> None:
            progress.update(task, description=stage)
            if not console.is_terminal:
                console.print(stage)

        with Live(get_renderable=view, console=console, refresh_per_second=4, transient=True):
            await run_demo(parts, state, duration_s=duration_s, seed=seed, on_stage=on_stage)


async def _until_signal(course: Coroutine[None, None, None]) -> bool:
    """Await ``course``; False when SIGINT or SIGTERM came first."""
    task = asyncio.ensure_future(course)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return False
    return True


def _say_what_to_try(console: Console, parts: Parts) -> None:
    control_plane = parts.control_plane
    console.print("While it runs, try in another terminal:")
    for command in (
        f"trimtab weights watch --address {control_plane.address}",
        f"trimtab explain 3 --address {control_plane.address}",
        f"trimtab models list --config {control_plane.config}",
        f"mlflow ui --backend-store-uri {control_plane.tracking_uri}",
        f"curl -s {parts.engine.url}/metrics | grep ^trimtab_",
    ):
        console.print(f"  {command}", highlight=False, soft_wrap=True)


def _write_json(
    path: Path, results: dict[str, PolicyResult], state: DemoState, *, seed: int
) -> None:
    document = {
        **provenance(seed=seed),
        "capacity_requests_per_s": state.capacity_requests_per_s,
        "policies": {name: result.as_json() for name, result in results.items()},
        "blocks": [
            {"policy": block.policy, "pair": block.pair, "span_s": block.replay.span_s}
            for block in state.finished
        ],
        "snapshots_applied": state.snapshots_applied,
        "model_version": state.model_version,
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
