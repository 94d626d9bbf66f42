"""From evidence to what is kept with a version."""

import numpy as np

from training.gate import Comparison, Evidence, GateLimits, judge
from training.record.results import MODEL, Judgement, RegimeLosses

CHAMPION = "champion"
"""What served at the time; the rule, where nothing did."""


def judgement_of(evidence: Evidence, limits: GateLimits | None = None) -> Judgement:
    """Every gate's verdict, and the mean losses that they go by."""
    compared = (*evidence.regimes, evidence.replay)
    return Judgement(judge(evidence, limits), tuple(_losses(one) for one in compared))


def _losses(comparison: Comparison) -> RegimeLosses:
    champion, candidate = comparison.loss.rows
    means = {CHAMPION: float(np.mean(champion)), MODEL: float(np.mean(candidate))}
    return RegimeLosses(comparison.name, means)
