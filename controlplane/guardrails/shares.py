"""Shares of the total weight: positive, summing to 1.

Legend: C classes. All arrays are [C] in configured order.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from models.classes import TaskClass

Shares: TypeAlias = NDArray[np.float64]

MAX_RATIO = 1e9
"""Wanted weights further apart than this count as this far apart."""


def default_shares(task_classes: Sequence[TaskClass]) -> Shares:
    """Shares in proportion to the classes' values, none below its floor: [C]."""
    values = np.array([cls.value for cls in task_classes], dtype=np.float64)
    return fill(spread(values), floor_shares(task_classes), np.ones_like(values))


def floor_shares(task_classes: Sequence[TaskClass]) -> Shares:
    """The configured floors: [C]."""
    return np.array([cls.floor for cls in task_classes], dtype=np.float64)


def spread(weights: Shares) -> Shares:
    """Positive weights of any magnitude as shares within MAX_RATIO of each other."""
    relative = np.maximum(weights / weights.max(), 1 / MAX_RATIO)
    shares: Shares = relative / relative.sum()
    return shares


def fill(target: Shares, low: Shares, high: Shares) -> Shares:
    """clip(c * target, low, high) for the c that makes it sum to 1.

    Found exactly, on the piece of the piecewise-linear sum that crosses 1 (the water-filling
    argument of Boyd and Vandenberghe, Convex Optimization, example 5.2). ``low`` must sum to
    at most 1 and ``high`` to at least 1.
    """
    breaks: list[float] = np.sort(np.concatenate([low / target, high / target])).tolist()

    def filled(factor: float) -> Shares:
        return np.clip(factor * target, low, high)

    last = len(breaks) - 1
    right = bisect_left(range(last), 1.0, lo=1, key=lambda index: filled(breaks[index]).sum())
    below, above = filled(breaks[right - 1]).sum(), filled(breaks[right]).sum()
    part = np.clip((1.0 - below) / (above - below), 0.0, 1.0) if above > below else 0.0
    return filled(breaks[right - 1] + part * (breaks[right] - breaks[right - 1]))
