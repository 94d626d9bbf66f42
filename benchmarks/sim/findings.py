"""What a comparison with the real engine found. Pure.

Each run is simulated twice: at the speed that the engine had when it was swept, and at its speed
in that very run. A machine that others share is faster in one minute than in the next, and
queues near saturation multiply the difference; the second account leaves it out. It takes one
number from the run, as a control plane does that follows its engines' reports.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.client import Replay
from benchmarks.loss import replay_loss
from benchmarks.results import summarise
from benchmarks.sim.comparison import (
    LatencyRow,
    latency_rows,
    mean_errors,
    rank_correlation,
    worst_errors,
)
from models.classes import TaskClass
from training.simulator.calibration import Calibration
from training.simulator.workload import Workload

SWEPT, FOLLOWED = "swept", "followed"


@dataclass(frozen=True, slots=True)
class Side:
    """A simulated run. Attributes: step_error_ratio: of the times of the real run's steps."""

    step_error_ratio: float
    run: Replay


@dataclass(frozen=True, slots=True)
class Pair:
    """A real run and what was simulated of it.

    Attributes:
        slowness: time that its steps took, over what the sweep said of them.
        sides: ``SWEPT`` and ``FOLLOWED``.
    """

    workload: Workload
    real: Replay
    slowness: float
    sides: Mapping[str, Side]


@dataclass(frozen=True, slots=True)
class Errors:
    """One account of all runs.

    Attributes:
        steps: mean error of a step's time, by load.
        loss: of each policy; by it they are ranked.
        value_ratio: share of the value that met its SLO, of each policy.
    """

    steps: Mapping[float, float]
    rows: Sequence[LatencyRow]
    tokens_per_s: float
    throughput_error_ratio: float
    loss: Mapping[str, float]
    value_ratio: Mapping[str, float]
    kendall_tau: float | None

    def as_json(self) -> dict[str, object]:
        """The parts of a result file."""
        return {
            "step_mape": float(np.mean(list(self.steps.values()))),
            **mean_errors(self.rows),
            "throughput_err": self.throughput_error_ratio,
            "kendall_tau": self.kendall_tau,
            "worst": worst_errors(self.rows),
            "step_mape_by_load": {f"{load:g}": error for load, error in self.steps.items()},
            "tokens_per_s": self.tokens_per_s,
            "loss": dict(self.loss),
            "value_ratio": dict(self.value_ratio),
            "rows": [{**asdict(row), "error_ratio": row.error_ratio} for row in self.rows],
        }


@dataclass(frozen=True, slots=True)
class Fidelity:
    """What was found.

    Attributes:
        loads: runs by load, relative to the capacity.
        policies: runs by policy, all on the same arrivals.
    """

    calibration: Calibration
    capacity_requests_per_s: float
    classes: Sequence[TaskClass]
    loads: Mapping[float, Pair]
    saturated: Pair
    policies: Mapping[str, Pair]

    @property
    def real_value_ratio(self) -> dict[str, float]:
        """Of each policy."""
        return {name: value_ratio(pair.real, self.classes) for name, pair in self.policies.items()}

    @property
    def real_loss(self) -> dict[str, float]:
        """Of each policy."""
        return {
            name: replay_loss(pair.real, self.classes).total for name, pair in self.policies.items()
        }

    @property
    def slowness(self) -> dict[str, float]:
        """Of each run."""
        runs = {f"load {load:g}": pair for load, pair in self.loads.items()}
        runs |= {"saturated": self.saturated, **self.policies}
        return {name: pair.slowness for name, pair in runs.items()}

    def errors(self, side: str) -> Errors:
        """The account of ``SWEPT`` or ``FOLLOWED``."""
        runs = {name: pair.sides[side].run for name, pair in self.policies.items()}
        loss = {name: replay_loss(run, self.classes).total for name, run in runs.items()}
        tokens = self.saturated.workload.total_tokens
        tokens_per_s = tokens / self.saturated.sides[side].run.span_s
        return Errors(
            steps={load: pair.sides[side].step_error_ratio for load, pair in self.loads.items()},
            rows=[
                row
                for load, pair in self.loads.items()
                for row in latency_rows(load, pair.real.answers, pair.sides[side].run.answers)
            ],
            tokens_per_s=tokens_per_s,
            throughput_error_ratio=abs(tokens_per_s * self.saturated.real.span_s / tokens - 1),
            loss=loss,
            value_ratio={name: value_ratio(run, self.classes) for name, run in runs.items()},
            kendall_tau=rank_correlation(self.real_loss, loss),
        )

    def as_json(self) -> dict[str, object]:
        """The parts of a result file: as swept, and as followed beside it."""
        tokens = self.saturated.workload.total_tokens
        return {
            **self.errors(SWEPT).as_json(),
            FOLLOWED: self.errors(FOLLOWED).as_json(),
            "slowness": self.slowness,
            "real_tokens_per_s": tokens / self.saturated.real.span_s,
            "real_loss": self.real_loss,
            "real_value_ratio": self.real_value_ratio,
            "calibration": {**asdict(self.calibration), "hash": self.calibration.hash},
            "capacity_requests_per_s": self.capacity_requests_per_s,
        }


def value_ratio(run: Replay, classes: Sequence[TaskClass]) -> float:
    """Share of the requests' value that met its SLO."""
    result = summarise([run], classes)
    total = sum(own.value * own.n for own in result.classes.values())
    return result.goodput_value_per_s * run.span_s / total
