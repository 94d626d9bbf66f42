"""From one model's forecasts to plans: dither, guardrails, and what they remember."""

from collections.abc import Sequence

import numpy as np

from controlplane.dither import Dither, dithered
from controlplane.forecaster import Forecast
from controlplane.guardrails import Bounds, Course, Ruling, Shares, decide, floor_shares, propose
from controlplane.snapshot import ClassDecision, Feature, Plan
from models.classes import TaskClass


class Pilot:
    """Plans tick by tick; one for each model that plays.

    Attributes:
        course: what the last plan left for the next.

    Args:
        shares: [C] in force at the start; sum to 1, none below its floor.
    """

    def __init__(
        self, task_classes: Sequence[TaskClass], *, bounds: Bounds, dither: Dither, shares: Shares
    ) -> None:
        self.course = Course.starting(shares)
        self._task_classes = tuple(task_classes)
        self._bounds = bounds
        self._dither = dither
        self._floors = floor_shares(task_classes)

    def plan(self, forecast: Forecast) -> tuple[Plan, Ruling]:
        """The plan of a tick with a window, and what the guardrails said of it."""
        changed = dithered(
            forecast.wanted,
            self._task_classes,
            self._dither,
            at_unix_s=forecast.window.end_unix_s,
        )
        proposal = propose(
            forecast.window,
            self._task_classes,
            self._bounds,
            wanted=changed.wanted,
            rule=forecast.rule_shares,
            unfamiliarity=forecast.unfamiliarity,
        )
        ruling = decide(proposal, self.course, floors=self._floors, bounds=self._bounds)
        self.course = ruling.course
        if ruling.rule_because is not None:
            forecast = forecast.yielding(ruling.rule_because)
        shifts = changed.shifts if ruling.rule_because is None else None  # the rule is not dithered
        return forecast_plan(forecast, ruling, self._task_classes, shifts), ruling

    def restart(self, shares: Shares) -> None:
        """Go on from these shares [C], with what is spent."""
        self.course = self.course.restarted(shares)


def forecast_plan(
    forecast: Forecast,
    ruling: Ruling,
    task_classes: Sequence[TaskClass],
    shifts: Shares | None = None,
) -> Plan:
    """A plan that remembers how each weight came about."""
    residuals = forecast.residuals
    decisions = tuple(
        ClassDecision(
            task_class=task_class.name,
            weight=float(ruling.shares[row]),
            rule_share=float(forecast.rule_shares[row]),
            residual=None if residuals is None else float(residuals[row]),
            features=_features(forecast, row),
            guardrails=tuple(rail.value for rail in ruling.fired[row]),
            dither=None if shifts is None else float(shifts[row]),
        )
        for row, task_class in enumerate(task_classes)
    )
    return Plan(
        forecast.mode,
        forecast.reason,
        decisions,
        forecast.model_version,
        forecast.window.end_unix_s,
    )


def _features(forecast: Forecast, row: int) -> tuple[Feature, ...]:
    values = forecast.features[row].tolist()
    return tuple(
        Feature(name, value if np.isfinite(value) else None)
        for name, value in zip(forecast.feature_names, values, strict=True)
    )
