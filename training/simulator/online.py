"""Keeping a calibration true while engines run: what they report, with forgetting.

What is older than a half-life counts half. So a service rate that drifts is followed, and
a measurement error passes.

Shapes: C classes.
"""

import math
from collections.abc import Sequence

import numpy as np

from models.classes import TaskClass
from models.window import Signal, Window, known
from training.simulator.calibration import Calibration
from training.simulator.replay import lengths_from_means, ratio_or_none
from training.simulator.step_fit import FEWEST_STEPS, Array, StepSums, fit_sums
from training.simulator.traffic import ClassTraffic

STEP_HALF_LIFE_S = 120.0
TRAFFIC_HALF_LIFE_S = 300.0
PRIOR_STEPS = 200.0
"""What the calibration that one starts from counts for, in steps."""

_SUM_TERMS = 4
_COUNTED = (
    Signal.ARRIVALS_PER_S,
    Signal.PROMPT_TOKENS_PER_S,
    Signal.FINISHED_PER_S,
    Signal.GENERATION_TOKENS_PER_S,
)


class OnlineCalibration:
    """Follows the step time of a fleet of equal engines.

    All engines' steps count together. The chunk-context term, of which reports say nothing,
    keeps its proportion to the rest of a step's time.
    """

    def __init__(self, start: Calibration, *, half_life_s: float = STEP_HALF_LIFE_S) -> None:
        self._start = start
        self._half_life_s = half_life_s
        self._last: dict[str, StepSums] = {}
        self._recent = StepSums.nothing()
        self._recent_at_s: float | None = None

    def report(self, engine_id: str, total: StepSums, now_s: float) -> None:
        """An engine's sums since it started; the steps since its last report count.

        The first report of an engine counts for nothing: it may be as old as the engine. Sums
        over fewer steps than before are of an engine that started anew.
        """
        last = self._last.get(engine_id)
        self._last[engine_id] = total
        if last is None:
            return
        fresh = total if total.steps < last.steps else total - last
        if fresh.steps > 0:
            self._recent = self._forgotten(now_s) + fresh
            self._recent_at_s = now_s

    def forget(self, engine_id: str) -> None:
        """The engine is gone."""
        self._last.pop(engine_id, None)

    @property
    def calibration(self) -> Calibration:
        """Of the recent steps; the one to start from until there are enough of them."""
        if self._recent.steps < FEWEST_STEPS:
            return self._start
        before = self._start.coefficients
        found = fit_sums(self._recent, before[:_SUM_TERMS], PRIOR_STEPS)
        moment = self._recent.moment
        speed = (moment @ found) / (moment @ before[:_SUM_TERMS])
        coefficients = np.append(found, before[_SUM_TERMS:] * speed)
        origin = f"online, from {self._start.hash[:12]}"
        return self._start.with_coefficients(coefficients, origin)

    def _forgotten(self, now_s: float) -> StepSums:
        if self._recent_at_s is None:
            return self._recent
        return self._recent.times(_kept(now_s - self._recent_at_s, self._half_life_s))


class OnlineTraffic:
    """Follows rates and lengths of the classes in the windows that a control plane reads.

    A window overlaps the one before; each of its steps counts once.
    """

    def __init__(
        self, classes: Sequence[TaskClass], *, half_life_s: float = TRAFFIC_HALF_LIFE_S
    ) -> None:
        self._classes = tuple(classes)
        self._half_life_s = half_life_s
        self._sums = np.zeros((len(_COUNTED), len(self._classes)))
        self._measured_s = np.zeros(len(self._classes))
        self._seen_unix_s = -math.inf

    def observe(self, window: Window) -> None:
        """Count the steps that end later than all that were seen.

        Raises:
            ValueError: the window is of other classes.
        """
        window.require_classes([kind.name for kind in self._classes])
        for step in range(window.steps):
            end_unix_s = window.end_unix_s - (window.steps - 1 - step) * window.step_s
            if end_unix_s > self._seen_unix_s + window.step_s / 2:
                self._count(window, step, end_unix_s)

    @property
    def rates_per_s(self) -> Array:
        """[C] arrivals; 0 for a class that was measured in no step."""
        arrivals = self._sums[_COUNTED.index(Signal.ARRIVALS_PER_S)]
        rates: Array = arrivals / np.where(self._measured_s > 0, self._measured_s, 1.0)
        return rates

    @property
    def traffic(self) -> tuple[ClassTraffic, ...]:
        """The classes that ask, the share of each being its requests per second."""
        arrivals, prompts, finished, outputs = self._sums.tolist()
        return tuple(
            ClassTraffic(
                kind,
                rate_per_s,
                lengths_from_means(
                    ratio_or_none(prompts[index], arrivals[index]),
                    ratio_or_none(outputs[index], finished[index]),
                ),
            )
            for index, (kind, rate_per_s) in enumerate(
                zip(self._classes, self.rates_per_s.tolist(), strict=True)
            )
            if rate_per_s > 0
        )

    def _count(self, window: Window, step: int, end_unix_s: float) -> None:
        rates = np.array([window.signals[signal][:, step] for signal in _COUNTED])  # [4, C]
        measured = known(rates).all(axis=0)  # [C]
        kept = _kept(end_unix_s - self._seen_unix_s, self._half_life_s)
        self._sums = self._sums * kept + np.where(measured, rates, 0.0) * window.step_s
        self._measured_s = self._measured_s * kept + measured * window.step_s
        self._seen_unix_s = end_unix_s


def _kept(age_s: float, half_life_s: float) -> float:
    return float(np.exp2(-max(0.0, age_s) / half_life_s))
