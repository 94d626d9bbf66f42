"""Intervals of ratios of mean losses, by a bootstrap over whole units.

All policies meet the same units, so they are drawn together: of what differs between units,
little is left in a ratio. Percentile intervals (B. Efron and R. J. Tibshirani, "An Introduction
to the Bootstrap", chapter 13); the draws come from a fixed seed.

Shapes: U units, P policies, B resamples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

RESAMPLES = 10_000
LEAST_LOSS = 1e-3
"""A mean loss, or a difference of two, below this is none, and nothing is divided by it."""

Statistic = Callable[[Float], Float]
"""Of mean losses [..., P]: [...]."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95% interval."""

    value: float
    low: float
    high: float


def change(means: Float) -> Float:
    """``first / second - 1``: below 0, the first loses less."""
    return _ratio(means[..., 0], means[..., 1]) - 1.0


def gap_closed(means: Float) -> Float:
    """``(best static - policy) / (best static - oracle)``, of policy, best static, oracle."""
    policy, static, oracle = means[..., 0], means[..., 1], means[..., 2]
    return _ratio(static - policy, static - oracle)


def change_of(policy: Sequence[Float], base: Sequence[Float]) -> Interval | None:
    """Of the mean losses. None: the base loses nothing.

    Args:
        policy: [U] losses in each of the regimes.
        base: likewise, of the same units.
    """
    if np.mean([losses.mean() for losses in base]) < LEAST_LOSS:
        return None
    return _interval([policy, base], change)


def headroom_of(static: Sequence[Float], oracle: Sequence[Float]) -> Interval | None:
    """Which part of the static weights' loss the oracle spares. None: they lose nothing."""
    found = change_of(oracle, static)
    return None if found is None else Interval(-found.value, -found.high, -found.low)


def gap_closed_of(
    policy: Sequence[Float], static: Sequence[Float], oracle: Sequence[Float]
) -> Interval | None:
    """None: there is no gap."""
    if np.mean([(one - other).mean() for one, other in zip(static, oracle, strict=True)]) < (
        LEAST_LOSS
    ):
        return None
    return _interval([policy, static, oracle], gap_closed)


def _interval(losses: Sequence[Sequence[Float]], statistic: Statistic) -> Interval:
    """Regimes count alike; units are drawn within each."""
    regimes = [np.stack(own, axis=-1) for own in zip(*losses, strict=True)]  # [U, P] each
    rng = np.random.default_rng(0)
    drawn = np.mean([_resampled(own, rng) for own in regimes], axis=0)  # [B, P]
    low, high = np.nanquantile(statistic(drawn), (0.025, 0.975)).tolist()
    means = np.mean([own.mean(axis=0) for own in regimes], axis=0)  # [P]
    return Interval(float(statistic(means)), low, high)


def _resampled(losses: Float, rng: np.random.Generator) -> Float:
    """Mean losses of resampled units: [B, P]."""
    units = len(losses)
    counts = rng.multinomial(units, np.full(units, 1 / units), size=RESAMPLES)  # [B, U]
    means: Float = counts @ losses / units
    return means


def _ratio(part: Float, whole: Float) -> Float:
    """NaN where there is nothing to divide by: a resample may hold no loss at all."""
    ratio: Float = np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)
    return ratio
