"""From forecasts to a verdict on the model.

Legend: C classes, F features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.features import FEATURE_NAMES, violation_fraction
from models.window import STEP_S

if TYPE_CHECKING:  # importing the detectors imports SciPy; the first snapshot can't wait for that
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from controlplane.drift.detectors import InputWatch, ResidualWatch
    from controlplane.forecaster import Forecast
    from models.window import Window

_INPUTS = ("log_ttft_to_slo", "demand_share", "log1p_waiting")
"""Delay, mix and load. KSWIN costs a third of a millisecond for each of a class's channels."""
_COLUMNS = tuple(FEATURE_NAMES.index(name) for name in _INPUTS)


@dataclass(frozen=True, slots=True)
class Drift:
    """The verdict on the serving model.

    Attributes:
        reason: why the rule should play; None: the model fits.
        retrain: why a retrain is asked for; None: it is not. It stays until another version
            serves, also when the residuals have recovered.
        found: classes, each with what found that they drifted, new in this tick.
    """

    reason: str | None = None
    retrain: str | None = None
    found: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Expectation:
    """What the model expects of a step: violation [C]."""

    step_end_unix_s: float
    violation: NDArray[np.float64]


def prepare() -> None:
    """Import what the first observation of a model needs: seconds that no tick can spare."""
    import controlplane.drift.detectors  # noqa: PLC0415, F401 - SciPy; see above


class DriftMonitor:
    """Compares what was forecast with what came, one step at a time.

    It starts anew whenever another model version serves. A drift of the residuals calls for
    the rule; one of the inputs only for a retrain, because whether the model copes with other
    inputs is what the residuals say. Not safe to use from two threads at once.
    """

    def __init__(self, task_classes: Sequence[str]) -> None:
        self._task_classes = tuple(task_classes)
        self._version: str | None = None
        self._expected: _Expectation | None = None
        self._residuals: list[ResidualWatch] = []
        self._inputs: list[InputWatch] = []
        self._retrain: str | None = None

    def observe(self, forecast: Forecast) -> Drift:
        """Take a forecast, of which the window also tells what became of an earlier one."""
        if forecast.model_version != self._version:
            self._start_on(forecast.model_version)
        if forecast.violation is None:  # the rule, or a model that forecasts nothing
            return Drift()
        found = self._compare(forecast)
        if self._expected is None:
            self._expected = _Expectation(forecast.window.end_unix_s + STEP_S, forecast.violation)
        return Drift(self._reason(), self._retrain, found)

    def _start_on(self, version: str | None) -> None:
        # A second of SciPy, in the thread that waits for Prometheus anyway.
        from controlplane.drift.detectors import InputWatch, ResidualWatch  # noqa: PLC0415

        self._version = version
        self._expected = None
        self._retrain = None
        self._residuals = [ResidualWatch() for _ in self._task_classes]
        self._inputs = [InputWatch(len(_COLUMNS)) for _ in self._task_classes]

    def _compare(self, forecast: Forecast) -> tuple[tuple[str, str], ...]:
        """Feed the detectors, once per step; the classes that have just drifted."""
        expected = self._expected
        if expected is None or forecast.window.end_unix_s < expected.step_end_unix_s:
            return ()
        self._expected = None
        self._watch_inputs(forecast.features)
        residuals = residuals_of(expected.violation, expected.step_end_unix_s, forecast.window)
        found = tuple(
            (name, str(watch.drifted_by))
            for name, watch, residual in zip(
                self._task_classes, self._residuals, residuals.tolist(), strict=True
            )
            if np.isfinite(residual) and watch.update(residual)
        )
        if found:
            self._retrain = self._reason()
        return found

    def _watch_inputs(self, features: NDArray[np.float64]) -> None:
        """Features [C, F] of the last step."""
        rows = features[:, _COLUMNS].tolist()
        for name, watch, values in zip(self._task_classes, self._inputs, rows, strict=True):
            channel = watch.update(values)
            if channel is not None and self._retrain is None:
                self._retrain = f"inputs changed: {_INPUTS[channel]} of {name} (kswin)"

    def _reason(self) -> str | None:
        drifted = [
            f"{name} expected {watch.recent:+.2f} too much, usually {watch.usual:+.2f} "
            f"({watch.drifted_by})"
            for name, watch in zip(self._task_classes, self._residuals, strict=True)
            if watch.drifted_by is not None
        ]
        return f"drift: {'; '.join(drifted)}" if drifted else None


def residuals_of(
    violation: NDArray[np.float64], step_end_unix_s: float, window: Window
) -> NDArray[np.float64]:
    """Expected minus realised violation of the step that ended then: [C].

    NaN where the window does not hold the step, or it says nothing of the class.
    """
    back = round((window.end_unix_s - step_end_unix_s) / window.step_s)
    if not 0 <= back < window.steps:
        return np.full_like(violation, np.nan)
    seen = violation_fraction(window)
    column = window.steps - 1 - back
    says = seen.known[:, column] & (seen.requests[:, column] > 0)
    return np.where(says, violation - seen.ratio[:, column], np.nan)
