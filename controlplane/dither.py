"""Small known changes of the weights, so that what they do can be told from everything else. Pure.

A weight follows the load, and so does the latency: from such records alone nobody can tell what
the weight did. A change that depends on nothing but a seed can be told apart. The log-weight of
each class that takes part is shifted by plus or minus an amplitude, the sign being drawn anew
every ``hold_s``: longer than a queue takes to answer to a weight, as a signal that is redrawn in
each tick would average out in it. Two levels, because for a given amplitude they tell most.

L. Ljung, System Identification (2nd edition, 1999), section 13.3, on binary signals and their
clock period.

It is off until an operator asks for it: it is an experiment on people's requests, and of use
only to those who analyse it. Where it is on, classes of tier P0 keep their share exactly: they
are those whose lateness costs most, and what a weight does shows in the others as well.

It is applied to what is wanted, before the guardrails, which therefore hold as ever.

Shapes: C classes, in configured order.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.classes import TaskClass, Tier

MAX_AMPLITUDE = 0.1
"""More is no longer small: a light class's weight would change by half from one sign to another."""

LARGEST_SWING = 4
"""Amplitudes between two signs, of a light class: the common sum counts twice."""


@dataclass(frozen=True, slots=True)
class Dither:
    """How the weights are changed.

    Attributes:
        amplitude: in log-weight, before those that take part get their sum back; 0: not at all.
        hold_s: how long a sign lasts.
        seed: of the signs.
        include_p0: whether classes of tier P0 take part.

    Raises:
        ValueError: a number is outside its range.
    """

    amplitude: float = 0.0
    hold_s: float = 30.0
    seed: int = 0
    include_p0: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers outside their range."""
        if not 0 <= self.amplitude <= MAX_AMPLITUDE:
            raise ValueError(f"amplitude must be in [0, {MAX_AMPLITUDE}], got {self.amplitude}")
        if not (math.isfinite(self.hold_s) and self.hold_s > 0):
            raise ValueError(f"hold_s must be a positive number of seconds, got {self.hold_s}")


OFF = Dither()


@dataclass(frozen=True, slots=True, eq=False)
class Dithered:
    """Wanted weights after the change.

    Attributes:
        wanted: [C] on the scale that they came on.
        shifts: [C] change of each log-weight; None: nothing was changed.
    """

    wanted: NDArray[np.float64]
    shifts: NDArray[np.float64] | None


def dithered(
    wanted: NDArray[np.float64],
    task_classes: Sequence[TaskClass],
    dither: Dither,
    *,
    at_unix_s: float,
) -> Dithered:
    """Change wanted weights; those that take part keep their sum.

    The same arguments give the same change, in whatever order the classes come.

    Args:
        wanted: [C] on any scale; what is no positive number is left alone.
        task_classes: [C] whose they are.
        dither: how they are changed.
        at_unix_s: end of the window that they were made from.
    """
    taking_part = np.array([_takes_part(one, dither) for one in task_classes], dtype=bool)
    free = taking_part & np.isfinite(wanted) & (wanted > 0)
    if dither.amplitude == 0 or not free.any():
        return Dithered(wanted, None)
    period = math.floor(at_unix_s / dither.hold_s)
    signs = np.array([_sign(dither.seed, period, one.name) for one in task_classes])
    shifts = np.where(free, dither.amplitude * signs, 0.0)  # [C]
    before = wanted[free].sum()
    shifts[free] -= math.log((wanted * np.exp(shifts))[free].sum() / before)
    return Dithered(wanted * np.exp(shifts), shifts)


def _takes_part(task_class: TaskClass, dither: Dither) -> bool:
    return dither.include_p0 or task_class.tier is not Tier.P0


def _sign(seed: int, period: int, name: str) -> float:
    digest = hashlib.sha256(f"{seed} {period} {name}".encode()).digest()
    return 1.0 if digest[0] & 1 else -1.0
