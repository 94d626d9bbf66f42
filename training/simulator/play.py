"""Run a scenario to its end: what became of every request.

Shapes: N requests, T ticks, C classes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from models.classes import TaskClass
from training.simulator.calibration import TERMS, at_speed
from training.simulator.model import Discipline, EngineModel, Fleet
from training.simulator.policies import uniform_shares
from training.simulator.result import Outcomes
from training.simulator.rollout import simulate
from training.simulator.scenario import Scenario
from training.simulator.scene import Measurement
from training.simulator.traffic import ClassTraffic, simultaneous

Shares = Callable[[Sequence[TaskClass]], NDArray[np.float64]]

_CAPACITY_REQUESTS = 400
_TICKS_AT_A_TIME = 64
_MOST_LEVELS = 256
"""Of a course: each is a run of its own, from a copy of the state."""


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """What became of the requests.

    Attributes:
        ttft_s: [N] as clients see it, from the arrival.
        e2e_s: [N] likewise, of the last token.
    """

    ttft_s: NDArray[np.float64]
    e2e_s: NDArray[np.float64]
    preemptions: int
    recomputed_tokens: int


def slowed(engine: EngineModel, factor: float) -> EngineModel:
    """The engine, each of whose steps takes so many times as long."""
    return at_speed(engine, factor * np.array([getattr(engine, term) for term in TERMS]))


def play(scenario: Scenario, fleet: Fleet, shares: Shares) -> Played:
    """Run until the last request is complete, under weights that stay as they are.

    The step time's course is followed in levels, tick by tick.

    Raises:
        RequestTooLarge: one is larger than an engine's KV memory, and would wait for ever.
    """
    workload = scenario.workload
    weights = shares(workload.classes)  # [C]
    state, recomputed_tokens = None, 0
    for ticks, factor in _levels(scenario, fleet.tick_s):
        pace = replace(fleet, engine=slowed(fleet.engine, factor))
        run = simulate(pace, workload, np.tile(weights, (ticks, 1)), state)
        state = run.state
        recomputed_tokens += round(run.series[..., Measurement.RECOMPUTED_TOKENS].sum())
        if not np.isnan(state.requests["finished_s"]).any():
            break
    outcomes = Outcomes.of(run, fleet.engine)
    return Played(
        ttft_s=outcomes.ttft_s,
        e2e_s=outcomes.e2e_s,
        preemptions=int(outcomes.preemptions.sum()),
        recomputed_tokens=recomputed_tokens,
    )


def capacity_requests_per_s(fleet: Fleet, traffic: Sequence[ClassTraffic]) -> float:
    """How many requests of the mix the fleet serves when it always has enough of them."""
    requests = _CAPACITY_REQUESTS * fleet.engines
    load = Scenario.steady("saturated", simultaneous(traffic, requests, seed=0))
    fcfs = replace(fleet, discipline=Discipline.FCFS)
    return len(load.workload) / float(play(load, fcfs, uniform_shares).e2e_s.max())


def _levels(scenario: Scenario, tick_s: float) -> Iterator[tuple[int, float]]:
    """Ticks and the factor on their step time; the last one goes on for ever."""
    pieces = max(1, math.ceil(scenario.duration_s / tick_s / _MOST_LEVELS))
    done, factor = 0, 1.0
    for until_s, factor in scenario.step_time.levels(
        max(scenario.duration_s, tick_s), pieces * tick_s
    ):
        until = math.ceil(until_s / tick_s)
        yield until - done, factor
        done = until
    while True:
        yield _TICKS_AT_A_TIME, factor
