"""How far a simulated run is from the real one on the same arrivals. Pure.

An error is ``|simulated / real - 1|``. Unknown is None, never 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import kendalltau

from benchmarks.client import Answer

LATENCIES = ("ttft", "e2e")
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """One percentile of one latency of one class at one load."""

    load: float
    task_class: str
    latency: str
    percentile: int
    requests: int
    real_s: float
    simulated_s: float

    @property
    def error_ratio(self) -> float:
        """Of the simulation."""
        return abs(self.simulated_s / self.real_s - 1)


def latency_rows(
    load: float, real: Sequence[Answer], simulated: Sequence[Answer]
) -> list[LatencyRow]:
    """Every class's percentiles, where both runs have any."""
    rows = []
    for task_class in sorted({answer.arrival.task_class for answer in real}):
        for latency in LATENCIES:
            ours, theirs = (_latencies_s(run, task_class, latency) for run in (simulated, real))
            rows += [
                LatencyRow(
                    load,
                    task_class,
                    latency,
                    percentile,
                    requests=len(theirs),
                    real_s=float(np.percentile(theirs, percentile)),
                    simulated_s=float(np.percentile(ours, percentile)),
                )
                for percentile in PERCENTILES
                if ours and theirs
            ]
    return rows


def mean_errors(rows: Sequence[LatencyRow]) -> dict[str, float | None]:
    """Over classes and loads, by ``ttft_p50_err`` and so on."""
    return {
        name: float(np.mean(errors)) if errors else None for name, errors in _by_name(rows).items()
    }


def worst_errors(rows: Sequence[LatencyRow]) -> dict[str, float | None]:
    """Likewise, of the class and load that is farthest off."""
    return {name: max(errors, default=None) for name, errors in _by_name(rows).items()}


def rank_correlation(real: Mapping[str, float], simulated: Mapping[str, float]) -> float | None:
    """Kendall's tau-b of two scorings of the same policies; None: one scores all alike.

    M. G. Kendall, "The treatment of ties in ranking problems", Biometrika 33 (1945).
    """
    names = sorted(real)
    tau = float(
        kendalltau([real[name] for name in names], [simulated[name] for name in names]).statistic
    )
    return None if np.isnan(tau) else tau


def _by_name(rows: Sequence[LatencyRow]) -> dict[str, list[float]]:
    return {
        f"{latency}_p{percentile}_err": [
            row.error_ratio
            for row in rows
            if row.latency == latency and row.percentile == percentile
        ]
        for latency in LATENCIES
        for percentile in PERCENTILES
    }


def _latencies_s(answers: Sequence[Answer], task_class: str, latency: str) -> list[float]:
    own = [answer for answer in answers if answer.arrival.task_class == task_class]
    seconds = [answer.ttft_s if latency == "ttft" else answer.e2e_s for answer in own]
    return [value for value in seconds if value is not None]
