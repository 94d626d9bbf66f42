"""Runs of a fleet on a workload, and what candidate weights would have done.

All candidates meet the same future: arrivals and lengths are the workload's, so results
differ by what the weights do and by nothing else (common random numbers). Every run is a
function of its arguments alone: it is the same on one thread, on many, and elsewhere.

Shapes: K candidates, T ticks, C classes, M measurements.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from training.errors import RequestTooLarge
from training.simulator.kernel import advance
from training.simulator.model import EngineModel, Fleet
from training.simulator.scene import Float, Scene, scene_of
from training.simulator.state import State
from training.simulator.workload import Workload


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What happened in some ticks.

    Attributes:
        workload: the requests that the state knows.
        state: at the end; a further run goes on from it.
        series: [T, C, M] by ``training.simulator.scene.Measurement``.
        first: index of the workload's first request in the workload that was asked about.
    """

    workload: Workload
    state: State
    series: Float
    first: int = 0


def simulate(fleet: Fleet, workload: Workload, weights: Float, state: State | None = None) -> Run:
    """Run some ticks.

    Args:
        fleet: it must be as large as the state's, but may be faster or slower.
        workload: all requests.
        weights: [T, C] of each tick, all > 0; only ratios matter, but under ``cp_score``.
        state: where to go on from; None: from the beginning. It stays as it is.

    Raises:
        ValueError: the weights do not fit.
        RequestTooLarge: a request is larger than an engine's memory.
    """
    weights = _checked(weights[None], workload)[0]
    require_room(fleet.engine, workload)
    if state is None:
        state = State.initial(fleet, requests=len(workload), classes=len(workload.classes))
    branch = state.branch()
    scene = scene_of(fleet, workload, branch, len(weights))
    advance(scene, weights)
    return Run(workload, branch, scene.series)


def evaluate(
    fleet: Fleet, workload: Workload, candidates: Float, state: State, *, threads: int = 1
) -> list[Run]:
    """Branch at the state once per candidate, and run each.

    The runs know only the requests that were live or came within the horizon.

    Args:
        fleet: as in ``simulate``.
        workload: likewise.
        candidates: [K, T, C] weights.
        state: where all begin. It stays as it is.
        threads: how many to use.

    Raises:
        ValueError: as in ``simulate``.
        RequestTooLarge: likewise.
    """
    candidates = _checked(candidates, workload)
    require_room(fleet.engine, workload)
    ticks = candidates.shape[1]
    end_s = (state.ticks + ticks) * fleet.tick_s
    first, part, start = _within(workload, state, end_s)
    scene = scene_of(fleet, part, start, ticks)

    def run(weights: Float) -> Run:
        branch = start.branch()
        own = _branched(scene, branch)
        advance(own, weights)
        return Run(part, branch, own.series, first)

    if threads == 1:  # handing over to another thread takes longer than a short run
        return [run(weights) for weights in candidates]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, candidates))


def _branched(scene: Scene, branch: State) -> Scene:
    """The same rules and workload with arrays of one's own for all that changes."""
    return scene._replace(
        **branch._asdict(),
        asks=scene.asks.copy(),
        heads=scene.heads.copy(),
        series=np.zeros_like(scene.series),
    )


def _within(workload: Workload, state: State, end_s: float) -> tuple[int, Workload, State]:
    """The requests that are live or arrive before ``end_s``, and the state in their terms.

    Returns:
        The index of the first of them, their workload, and the state.
    """
    arrived = int(state.cursor["arrival"][0])
    live = np.flatnonzero(np.isnan(state.requests["finished_s"][:arrived]))
    first = int(live[0]) if len(live) else arrived
    stop = max(arrived, int(np.searchsorted(workload.arrival_s, end_s)))
    part = replace(
        workload,
        arrival_s=workload.arrival_s[first:stop],
        class_index=workload.class_index[first:stop],
        prompt_tokens=workload.prompt_tokens[first:stop],
        output_tokens=workload.output_tokens[first:stop],
    )
    return first, part, state.among(first, stop)


def _checked(candidates: Float, workload: Workload) -> Float:
    classes = len(workload.classes)
    if candidates.ndim != 3 or candidates.shape[2] != classes:  # noqa: PLR2004 - K, T and C
        raise ValueError(f"weights must be [..., T, {classes}], got {candidates.shape}")
    if not (np.isfinite(candidates).all() and (candidates > 0).all()):
        raise ValueError("weights must be positive and finite")
    return np.ascontiguousarray(candidates, dtype=np.float64)


def require_room(engine: EngineModel, workload: Workload) -> None:
    """What never fits would wait for ever, and all behind it."""
    tokens = int((workload.prompt_tokens + workload.output_tokens).max(initial=0))
    if tokens > engine.most_tokens:
        raise RequestTooLarge(
            f"a request of {tokens} tokens does not fit into the engine, "
            f"which takes {engine.most_tokens}"
        )
