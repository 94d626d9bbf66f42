"""Bounds on what any forecaster may publish. Pure.

Legend: C classes. All arrays are [C] in configured order.

The wanted weights r become shares s that sum to 1 and stay in a box:

    lo_k = max(floor_k, previous_k * exp(-step))
    hi_k = previous_k * exp(+step)
    s_k  = clip(c * r_k, lo_k, hi_k),  with the one c for which sum(s) = 1

so that no class falls below its floor, no log-share moves by more than `step`
in one tick, and the ratios between classes inside the box are the wanted ones.
sum(s) grows with c, and previous shares that sum to 1 and keep their floors are
themselves in the box; hence c exists. It is found exactly, on the piece of the
piecewise-linear sum(s) that crosses 1 (the water-filling argument of Boyd and
Vandenberghe, Convex Optimization, example 5.2).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from models.classes import TaskClass

Shares: TypeAlias = NDArray[np.float64]

MAX_RATIO = 1e9
"""Wanted weights further apart than this count as this far apart."""


class Guardrail(StrEnum):
    """What changed a wanted weight: of two lower bounds, the one that binds."""

    FINITE = "finite"
    """It was no positive finite number: the class keeps its previous share."""
    STEP = "step"
    """Its log-share would have moved too far in one tick."""
    FLOOR = "floor"
    """It would have fallen below the class's floor."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """Shares fit to publish, and per class the guardrails that fired."""

    shares: Shares
    fired: tuple[tuple[Guardrail, ...], ...]


def guard(
    wanted: Shares, *, previous: Shares, floors: Shares, max_log_share_step: float
) -> Guarded:
    """Bring wanted weights into the box.

    Args:
        wanted: [C] weights on any scale; may hold anything, NaN included.
        previous: [C] shares in force; sum to 1, each at least its floor.
        floors: [C] least shares; sum below 1.
        max_log_share_step: how far a log-share may move; > 0.
    """
    usable = np.isfinite(wanted) & (wanted > 0)
    target = _target(wanted, usable, previous)
    step_low = previous * np.exp(-max_log_share_step)
    high = np.minimum(previous * np.exp(max_log_share_step), 1.0)
    shares = _fill(target, np.maximum(floors, step_low), high)
    conditions = {
        Guardrail.FINITE: ~usable,
        Guardrail.STEP: ((target < step_low) & (step_low > floors)) | (target > high),
        Guardrail.FLOOR: (target < floors) & (step_low <= floors),
    }
    return Guarded(shares, _fired(conditions))


def default_shares(task_classes: Sequence[TaskClass]) -> Shares:
    """Shares in proportion to the classes' values, none below its floor: [C]."""
    values = np.array([cls.value for cls in task_classes], dtype=np.float64)
    return _fill(_spread(values), floor_shares(task_classes), np.ones_like(values))


def floor_shares(task_classes: Sequence[TaskClass]) -> Shares:
    """The configured floors: [C]."""
    return np.array([cls.floor for cls in task_classes], dtype=np.float64)


def _target(wanted: Shares, usable: NDArray[np.bool_], previous: Shares) -> Shares:
    """Wanted shares [C]; the unusable keep theirs, the others divide the rest."""
    target = previous.copy()
    if usable.any():
        target[usable] = _spread(wanted[usable]) * previous[usable].sum()
    return target


def _spread(weights: Shares) -> Shares:
    """Positive weights of any magnitude as shares within MAX_RATIO of each other."""
    relative = np.maximum(weights / weights.max(), 1 / MAX_RATIO)
    shares: Shares = relative / relative.sum()
    return shares


def _fill(target: Shares, low: Shares, high: Shares) -> Shares:
    """clip(c * target, low, high) for the c that makes it sum to 1."""
    breaks: list[float] = np.sort(np.concatenate([low / target, high / target])).tolist()

    def filled(factor: float) -> Shares:
        return np.clip(factor * target, low, high)

    last = len(breaks) - 1
    right = bisect_left(range(last), 1.0, lo=1, key=lambda index: filled(breaks[index]).sum())
    below, above = filled(breaks[right - 1]).sum(), filled(breaks[right]).sum()
    part = np.clip((1.0 - below) / (above - below), 0.0, 1.0) if above > below else 0.0
    return filled(breaks[right - 1] + part * (breaks[right] - breaks[right - 1]))


def _fired(
    conditions: dict[Guardrail, NDArray[np.bool_]],
) -> tuple[tuple[Guardrail, ...], ...]:
    """Per class, the guardrails whose condition holds."""
    rows = zip(*conditions.values(), strict=True)
    return tuple(
        tuple(rail for rail, holds in zip(conditions, row, strict=True) if holds) for row in rows
    )
