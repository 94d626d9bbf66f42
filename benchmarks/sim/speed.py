"""How many seconds of an engine's life the simulator runs through in one second.

One engine, not a measured one, near saturation under the reference workload. Several engines
take so many times as long. What a step of the simulator takes depends little on how long the
simulated step is: an engine whose steps are twice as long is simulated twice as fast. So the
steps per second are given, too. On one thread its CPU time counts, so that what else the
machine does matters little; on several, the time that passes.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from rich.table import Table

from models.window import STEP_S
from training.simulator.calibration import REFERENCE_ENGINE
from training.simulator.model import Discipline, Fleet, Shaping
from training.simulator.play import capacity_requests_per_s
from training.simulator.policies import value_shares
from training.simulator.regimes import draw_scenario
from training.simulator.rollout import evaluate, simulate
from training.simulator.scene import Float, Measurement
from training.simulator.traffic import REFERENCE
from training.simulator.workload import Workload

GOAL_X_REALTIME = 20_000
LOAD = 0.95
_BRANCH_TICKS = 12


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
        running: requests, on average.
        waiting: likewise.
        x_realtime: simulated seconds per CPU second; the median.
        steps_per_s: of the engine's, per CPU second.
    """

    discipline: str
    budget: str
    running: float
    waiting: float
    x_realtime: float
    steps_per_s: float


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured.

    Attributes:
        rows: the plugin's default first.
        branched_x_realtime: of one-minute branches from one state, per second that passes and
            summed over them, by threads.
    """

    rows: tuple[SpeedRow, ...]
    branched_x_realtime: dict[int, float]

    def as_json(self) -> dict[str, object]:
        """The parts of a result file."""
        branched = {str(threads): speed for threads, speed in self.branched_x_realtime.items()}
        return {
            "speed_x_realtime": self.rows[0].x_realtime,
            "speed": {
                "goal_x_realtime": GOAL_X_REALTIME,
                "load": LOAD,
                "rows": [asdict(row) for row in self.rows],
                "branched_x_realtime": branched,
            },
        }

    def as_table(self) -> Table:
        """For a terminal."""
        table = Table(
            title=f"Simulated seconds per second on one core, at {LOAD:.0%} of the capacity; "
            f"goal {GOAL_X_REALTIME:,}"
        )
        table.add_column("discipline")
        table.add_column("budget")
        for column in ("running", "waiting", "x real time", "steps per s"):
            table.add_column(column, justify="right")
        for row in self.rows:
            table.add_row(
                row.discipline,
                row.budget,
                f"{row.running:.1f}",
                f"{row.waiting:.1f}",
                f"{row.x_realtime:,.0f}",
                f"{row.steps_per_s:,.0f}",
            )
        for threads, speed in self.branched_x_realtime.items():
            table.add_row("branches", f"on {threads} threads", "", "", f"{speed:,.0f}", "")
        return table


def measure_speed(effort: Effort, seed: int) -> Speed:
    """Run every discipline, then branches on one thread and on two."""
    default = Fleet(REFERENCE_ENGINE.engine, declares_output=True)
    scenario = draw_scenario(
        "stationary",
        REFERENCE,
        requests_per_s=LOAD * capacity_requests_per_s(default, REFERENCE),
        duration_s=effort.simulated_s,
        seed=seed,
    )
    fleets = [
        default,
        Fleet(default.engine, declares_output=True, shaping=Shaping.STOCK),
        *(
            Fleet(default.engine, declares_output=True, discipline=one)
            for one in Discipline
            if one is not default.discipline
        ),
    ]
    return Speed(
        rows=tuple(_row(fleet, scenario.workload, effort) for fleet in fleets),
        branched_x_realtime={
            threads: _branched(default, scenario.workload, effort, threads) for threads in (1, 2)
        },
    )


def _row(fleet: Fleet, workload: Workload, effort: Effort) -> SpeedRow:
    weights = _by_value(round(effort.simulated_s / STEP_S))
    run = simulate(fleet, workload, weights)
    cpu_s = _median_s(
        lambda: simulate(fleet, workload, weights), effort.repetitions, time.thread_time
    )
    gauges = run.series.sum(axis=1).mean(axis=0)  # [M]
    return SpeedRow(
        discipline=fleet.discipline.value,
        budget="stock" if fleet.discipline is Discipline.FCFS else fleet.shaping.value,
        running=float(gauges[Measurement.RUNNING]),
        waiting=float(gauges[Measurement.WAITING]),
        x_realtime=len(weights) * STEP_S / cpu_s,
        steps_per_s=float(run.state.engines["steps"].sum() / cpu_s),
    )


def _branched(fleet: Fleet, workload: Workload, effort: Effort, threads: int) -> float:
    half = round(effort.simulated_s / STEP_S / 2)
    state = simulate(fleet, workload, _by_value(half)).state
    rng = np.random.default_rng(0)
    shape = (effort.candidates, _BRANCH_TICKS, len(REFERENCE))
    candidates = rng.uniform(0.05, 1.0, shape)
    wall_s = _median_s(
        lambda: evaluate(fleet, workload, candidates, state, threads=threads),
        effort.repetitions,
        time.perf_counter,
    )
    return effort.candidates * _BRANCH_TICKS * STEP_S / wall_s


def _median_s(work: Callable[[], object], repetitions: int, clock_s: Callable[[], float]) -> float:
    def once() -> float:
        begun_s = clock_s()
        work()
        return clock_s() - begun_s

    return statistics.median(once() for _ in range(repetitions))


def _by_value(ticks: int) -> Float:
    return np.tile(value_shares([kind.task_class for kind in REFERENCE]), (ticks, 1))  # [T, C]
