"""What an operator would build without a model: weights that follow the violations.

Shapes: C classes, T steps.
"""

from collections.abc import Sequence

import numpy as np

from models.classes import TaskClass
from models.features import violation_fraction
from models.window import Window
from training.closed_loop.controller import Shares
from training.simulator.policies import value_shares

EWMA = 0.3
"""Weight of the newest step in the smoothed violation fraction."""
PROPORTIONAL, INTEGRAL, DERIVATIVE = 1.0, 0.02, 0.5
"""Log-share for each unit of violation fraction; the integral's per tick. Small gains of the
usual sign: on training seeds larger proportional and integral ones lost more, the opposite sign
least."""
MOST_INTEGRAL = 2.0
"""Log-share that the integral may reach: it must not wind up while all classes are late."""


class Pid:
    """A PID controller on each class's smoothed violation fraction, against the mean of all.

    log weight = log value + P e + I sum(e) + D (e - e before). A controller for one run.
    """

    def __init__(self, classes: int) -> None:
        self._smooth = np.zeros(classes)
        self._before = np.zeros(classes)
        self._integral = np.zeros(classes)

    def weights(self, window: Window, classes: Sequence[TaskClass], _tick: int) -> Shares:
        """Wanted weights: [C]."""
        newest = violation_fraction(window).ratio[:, -1]  # [C]
        self._smooth += EWMA * (newest - self._smooth)
        error = self._smooth - self._smooth.mean()  # [C]
        bound = MOST_INTEGRAL
        self._integral = np.clip(self._integral + INTEGRAL * error, -bound, bound)
        shift = PROPORTIONAL * error + self._integral + DERIVATIVE * (error - self._before)
        self._before = error
        weights: Shares = value_shares(classes) * np.exp(shift)
        return weights
