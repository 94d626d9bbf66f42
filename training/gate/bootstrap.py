"""Confidence intervals of paired comparisons."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from training.gate.evidence import Paired, Row

RESAMPLES = 10_000
SEED = 20_260_729
"""Fixed: the same evidence gets the same verdict."""


Statistic: TypeAlias = Callable[[Row, Row], Row]
"""Of champion and candidate, over the last axis."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its two-sided interval."""

    estimate: float
    low: float
    high: float


def mean_difference(champion: Row, candidate: Row) -> Row:
    """Candidate less champion, of the means over the last axis."""
    difference: Row = candidate.mean(axis=-1) - champion.mean(axis=-1)
    return difference


def relative_difference(champion: Row, candidate: Row) -> Row:
    """The same in parts of the champion's mean; 0 when both are 0, infinite when only that is."""
    base, difference = champion.mean(axis=-1), mean_difference(champion, candidate)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative: Row = np.where(difference == 0, 0.0, difference / np.abs(base))
    return relative


def paired_interval(
    pairs: Paired,
    statistic: Statistic,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval:
    """Percentile bootstrap over whole pairs (Efron and Tibshirani 1993, section 13.3).

    A pair is drawn with both its numbers, so what the two models have in common, the trace
    and the seed, cancels in every resample.

    Args:
        pairs: what both did; with one that is no number, neither is the interval.
        statistic: of champion and candidate, over the last axis.
        confidence: of the two-sided interval.
        resamples: how many.
    """
    if not pairs.finite:
        return Interval(math.nan, math.nan, math.nan)
    champion, candidate = pairs.rows
    drawn = np.random.default_rng(SEED).integers(len(pairs), size=(resamples, len(pairs)))
    tails = (0.5 - confidence / 2, 0.5 + confidence / 2)
    low, high = np.quantile(statistic(champion[drawn], candidate[drawn]), tails)
    return Interval(float(statistic(champion, candidate)), float(low), float(high))
