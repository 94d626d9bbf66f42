"""Did the traffic jump so far that waiting for small steps would be wrong?

Legend: C classes, T steps.
"""

import numpy as np

from controlplane.guardrails.rails import Mask
from controlplane.guardrails.shares import Shares
from models.window import Signal, Window, known

RECENT_STEPS = 2
"""A jump has to last for two steps to count."""
LEAST_RATIO = 2.0
"""And to double or halve the rate: at high rates much smaller changes are significant."""


def mutated(window: Window, *, score: float) -> Mask:
    """Classes whose rate of arrivals jumped within the last steps: [C].

    The root of a Poisson count n over t seconds has variance 1/4 whatever its mean, so
    ``sqrt(n/t)`` has ``1/(4t)`` (Anscombe 1948, Biometrika 35, "The transformation of Poisson,
    binomial and negative-binomial data"), and the difference of the roots of two rates is a
    number of standard errors.

    Args:
        window: any; one shorter than the recent steps shows no jump.
        score: how many standard errors make a jump.
    """
    arrivals = window.signals[Signal.ARRIVALS_PER_S]  # [C, T]
    recent, recent_s = _rate(arrivals[:, -RECENT_STEPS:], window.step_s)  # [C]
    before, before_s = _rate(arrivals[:, :-RECENT_STEPS], window.step_s)  # [C]
    seen = (recent_s > 0) & (before_s > 0)  # [C]
    with np.errstate(divide="ignore", invalid="ignore"):  # nothing seen: excluded below
        error = np.sqrt(0.25 / recent_s + 0.25 / before_s)
        errors = np.abs(np.sqrt(recent) - np.sqrt(before)) / error
    far = np.maximum(recent, before) >= LEAST_RATIO * np.minimum(recent, before)
    jumped: Mask = seen & far & (errors >= score)
    return jumped


def _rate(arrivals_per_s: Shares, step_s: float) -> tuple[Shares, Shares]:
    """Mean rate over the known steps, 0 without any, and for how long they last: [C] each."""
    measured = known(arrivals_per_s)  # [C, t]
    steps = measured.sum(axis=1)  # [C]
    total = np.where(measured, arrivals_per_s, 0.0).sum(axis=1)  # [C]
    return total / np.maximum(steps, 1), steps * step_s
