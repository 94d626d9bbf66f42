"""How many seconds of an engine's life the simulator runs through in one second.

One engine near saturation, four classes, steps of some tens of milliseconds. Several engines
take so many times as long.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from models.classes import LatePolicy, Slo, TaskClass
from models.window import STEP_S
from training.simulator.model import Discipline, EngineModel, Fleet, Shaping
from training.simulator.rollout import evaluate, simulate
from training.simulator.scene import Measurement
from training.simulator.state import State
from training.simulator.workload import Workload

GOAL_X_REALTIME = 20_000

CLASSES = (
    TaskClass("vip", Slo(ttft_s=1.5, tpot_s=0.15), value=10.0, max_wait_s=30.0),
    TaskClass("chat", Slo(ttft_s=4.0, tpot_s=0.2), value=2.0, late=LatePolicy.DEMOTE),
    TaskClass("long", Slo(ttft_s=10.0), value=3.0, late=LatePolicy.DEMOTE),
    TaskClass("batch", Slo(ttft_s=60.0), late=LatePolicy.DEMOTE, max_wait_s=300.0),
)
_SHARES = (0.3, 0.4, 0.15, 0.15)
_PROMPT_TOKENS = np.array([100, 200, 1500, 600])
_OUTPUT_TOKENS = np.array([50, 120, 60, 150])
_SPREAD = 0.6
_MOST_PROMPT_TOKENS, _MOST_OUTPUT_TOKENS = 8000, 1000
_WEIGHTS = np.array([0.6, 0.2, 0.15, 0.05])

ENGINE = EngineModel(
    base_s=0.02,
    prefill_s_per_token=6e-5,
    decode_s_per_sequence=5e-4,
    kv_s_per_token=2e-7,
    slots=32,
    step_tokens=1024,
    kv_blocks=4000,
)
LOAD = 0.95
_CAPACITY_REQUESTS = 2000


@dataclass(frozen=True, slots=True)
class Effort:
    """How long is measured: simulated time, repetitions, candidates of a branch."""

    simulated_s: float = 3600.0
    repetitions: int = 5
    candidates: int = 32

    @classmethod
    def quick(cls) -> "Effort":
        """See that it works."""
        return cls(simulated_s=300.0, repetitions=1, candidates=2)


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """One way of scheduling.

    Attributes:
        x_realtime: simulated seconds per wall second on one thread; the median.
    """

    discipline: str
    shaping: str
    running: float
    waiting: float
    x_realtime: float


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured.

    Attributes:
        x_realtime: of the plugin's default, on one thread.
        branched_x_realtime: of 60 s branches from one state, summed over them, by threads.
    """

    rows: tuple[SpeedRow, ...]
    branched_x_realtime: dict[int, float]

    @property
    def x_realtime(self) -> float:
        """The first row's."""
        return self.rows[0].x_realtime

    def as_json(self) -> dict[str, object]:
        """The parts of a result file."""
        return {
            "speed_x_realtime": self.x_realtime,
            "speed": {
                "goal_x_realtime": GOAL_X_REALTIME,
                "load": LOAD,
                "rows": [
                    {
                        "discipline": row.discipline,
                        "shaping": row.shaping,
                        "running": row.running,
                        "waiting": row.waiting,
                        "x_realtime": row.x_realtime,
                    }
                    for row in self.rows
                ],
                "branched_x_realtime": {
                    str(threads): speed for threads, speed in self.branched_x_realtime.items()
                },
            },
        }

    def as_table(self) -> Table:
        """For a terminal."""
        table = Table(title=f"Simulated seconds per second on one core, at {LOAD:.0%} of capacity")
        table.add_column("discipline")
        table.add_column("budget")
        for column in ("running", "waiting", "x real time"):
            table.add_column(column, justify="right")
        for row in self.rows:
            table.add_row(
                row.discipline,
                row.shaping,
                f"{row.running:.1f}",
                f"{row.waiting:.1f}",
                f"{row.x_realtime:,.0f}",
            )
        for threads, speed in self.branched_x_realtime.items():
            table.add_row("60 s branches", f"{threads} threads", "", "", f"{speed:,.0f}")
        return table


def measure_speed(effort: Effort, seed: int) -> Speed:
    """Run every discipline, then branches on one thread and on two."""
    workload = reference_workload(LOAD * _capacity_per_s(seed), effort.simulated_s, seed)
    default = Fleet(ENGINE)
    fleets = [
        default,
        Fleet(ENGINE, shaping=Shaping.STOCK),
        *(Fleet(ENGINE, discipline=one) for one in Discipline if one is not Discipline.APQ),
    ]
    return Speed(
        rows=tuple(_row(fleet, workload, effort) for fleet in fleets),
        branched_x_realtime={
            threads: _branched(default, workload, effort, threads) for threads in (1, 2)
        },
    )


def reference_workload(rate_per_s: float, duration_s: float, seed: int) -> Workload:
    """Poisson arrivals of the four classes, with log-normal lengths."""
    rng = np.random.default_rng(seed)
    count = rng.poisson(rate_per_s * duration_s)
    return _requests(np.sort(rng.uniform(0.0, duration_s, count)), rng)


def _requests(arrival_s: NDArray[np.float64], rng: np.random.Generator) -> Workload:
    count = len(arrival_s)
    kinds = rng.choice(len(CLASSES), count, p=_SHARES)

    def tokens(medians: NDArray[np.int64], most: int) -> NDArray[np.int32]:
        drawn = medians[kinds] * rng.lognormal(0.0, _SPREAD, count)
        return np.clip(drawn, 1, most).astype(np.int32)

    return Workload(
        arrival_s=arrival_s,
        class_index=kinds.astype(np.int32),
        prompt_tokens=tokens(_PROMPT_TOKENS, _MOST_PROMPT_TOKENS),
        output_tokens=tokens(_OUTPUT_TOKENS, _MOST_OUTPUT_TOKENS),
        classes=CLASSES,
    )


def _capacity_per_s(seed: int) -> float:
    """Requests per second when there are always enough of them."""
    workload = _requests(np.zeros(_CAPACITY_REQUESTS), np.random.default_rng(seed))
    state = State.initial(Fleet(ENGINE), requests=len(workload), classes=len(CLASSES))
    while np.isnan(state.requests["finished_s"]).any():
        state = simulate(Fleet(ENGINE), workload, _constant(60), state).state
    return float(len(workload) / state.requests["finished_s"].max())


def _row(fleet: Fleet, workload: Workload, effort: Effort) -> SpeedRow:
    weights = _constant(round(effort.simulated_s / STEP_S))
    run = simulate(fleet, workload, weights)
    wall_s = _median_s(lambda: simulate(fleet, workload, weights), effort.repetitions)
    gauges = run.series.sum(axis=1).mean(axis=0)
    return SpeedRow(
        discipline=fleet.discipline.value,
        shaping="stock" if fleet.discipline is Discipline.FCFS else fleet.shaping.value,
        running=float(gauges[Measurement.RUNNING]),
        waiting=float(gauges[Measurement.WAITING]),
        x_realtime=len(weights) * STEP_S / wall_s,
    )


def _branched(fleet: Fleet, workload: Workload, effort: Effort, threads: int) -> float:
    half = round(effort.simulated_s / STEP_S / 2)
    state = simulate(fleet, workload, _constant(half)).state
    rng = np.random.default_rng(0)
    candidates = rng.uniform(0.05, 1.0, (effort.candidates, 12, len(CLASSES)))
    wall_s = _median_s(
        lambda: evaluate(fleet, workload, candidates, state, threads=threads), effort.repetitions
    )
    return effort.candidates * 12 * STEP_S / wall_s


def _median_s(work: Callable[[], object], repetitions: int) -> float:
    def once() -> float:
        begun_s = time.perf_counter()
        work()
        return time.perf_counter() - begun_s

    return statistics.median(once() for _ in range(repetitions))


def _constant(ticks: int) -> NDArray[np.float64]:
    return np.tile(_WEIGHTS, (ticks, 1))
