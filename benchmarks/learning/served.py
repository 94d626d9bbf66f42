"""What the control plane would put in force, tick by tick: forecast, drift, guardrails.

The parts are the control plane's own, put together as its loop does, without the network between
them, and with the guardrails' numbers as they are where nobody changed them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from controlplane.dither import OFF
from controlplane.drift import DriftMonitor
from controlplane.forecaster import Champion, Forecaster
from controlplane.guardrails import Bounds, default_shares
from controlplane.pilot import Pilot
from models.bundle import Bundle
from models.classes import TaskClass
from models.window import Window
from training.closed_loop.controller import Shares

View = Callable[[Window], Window]
"""What the model is shown in place of the window. It is asked at each tick, in order."""


class Served:
    """A controller for one run: it remembers the course of the guardrails.

    Args:
        task_classes: of the run.
        bundle: the champion; None: there is none, and the rule plays.
        view: of the window, for the model alone; the guardrails see it as it is.
    """

    def __init__(
        self, task_classes: Sequence[TaskClass], bundle: Bundle | None, view: View | None = None
    ) -> None:
        self._forecaster = Forecaster(task_classes)
        if bundle is not None:
            self._forecaster.swap(Champion("benchmark", bundle))
        self._view = view
        self._drift = DriftMonitor([one.name for one in task_classes])
        self._pilot = Pilot(
            task_classes, bounds=Bounds(), dither=OFF, shares=default_shares(task_classes)
        )

    def weights(self, window: Window, _classes: Sequence[TaskClass], _tick: int) -> Shares:
        """Shares in force: nothing more is to be done to them."""
        shown = window if self._view is None else self._view(window)
        forecast = self._forecaster.forecast(shown)
        drift = self._drift.observe(forecast)
        if drift.reason is not None:
            forecast = forecast.yielding(drift.reason)
        _, ruling = self._pilot.plan(replace(forecast, window=window))
        return ruling.shares


class Shuffled:
    """The same steps in another order, drawn anew at each tick: what has order is lost."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng([seed, 0x5F])

    def __call__(self, window: Window) -> Window:
        """All signals of all classes in one and the same new order."""
        order = self._rng.permutation(window.steps)
        return Window(
            end_unix_s=window.end_unix_s,
            step_s=window.step_s,
            task_classes=window.task_classes,
            signals={name: values[:, order] for name, values in window.signals.items()},
        )


class Delayed:
    """The window of some ticks ago; before there is one, the first."""

    def __init__(self, ticks: int) -> None:
        self._ticks = ticks
        self._seen: list[Window] = []

    def __call__(self, window: Window) -> Window:
        """The older one."""
        self._seen.append(window)
        return self._seen[max(0, len(self._seen) - 1 - self._ticks)]
