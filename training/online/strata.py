"""What kind of moment a window shows: how much work, of whom, and how badly it went. Pure.

Shapes: C classes, T steps.
"""

import math
from dataclasses import dataclass

import numpy as np

from models.features import violation_fraction
from models.rule import mean_work_tokens
from models.window import Signal, Window, known

MIXED = ""
"""No class brings more than half of the work. No class is named so."""

ERROR_BOUNDS = (0.01, 0.05, 0.2)
"""Violation fractions between which moments count as alike."""


@dataclass(frozen=True, slots=True, order=True)
class Stratum:
    """Moments that count as alike.

    Attributes:
        load: work that arrives, in doublings of one token per second, rounded down.
        mix: the class that brings more than half of it; ``MIXED``: none does.
        errors: how many of ``ERROR_BOUNDS`` the violation fraction reaches.
    """

    load: int
    mix: str
    errors: int


def stratum(window: Window) -> Stratum:
    """The stratum of a window. What is unknown counts as no work and no violation."""
    arrivals = window.signals[Signal.ARRIVALS_PER_S]  # [C, T]
    arrivals_per_s = np.where(known(arrivals), arrivals, 0.0).mean(axis=1)  # [C]
    work = arrivals_per_s * mean_work_tokens(window)  # [C] prompt tokens per second
    total, leader = float(work.sum()), int(work.argmax())
    leads = work[leader] > total / 2
    return Stratum(
        load=math.floor(math.log2(1.0 + total)),
        mix=window.task_classes[leader] if leads else MIXED,
        errors=sum(_violated_ratio(window) >= bound for bound in ERROR_BOUNDS),
    )


def _violated_ratio(window: Window) -> float:
    """Requests in violation among all that the window says something about."""
    seen = violation_fraction(window)
    requests = float(seen.requests.sum())
    return float((seen.ratio * seen.requests).sum()) / requests if requests > 0 else 0.0
