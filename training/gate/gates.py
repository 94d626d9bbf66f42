"""The gates: each takes the evidence and gives its verdict."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from models.verdicts import Verdict
from training.gate.bootstrap import (
    Interval,
    Statistic,
    mean_difference,
    paired_interval,
    relative_difference,
)
from training.gate.evidence import Comparison, Evidence, Paired


@dataclass(frozen=True, slots=True)
class GateLimits:
    """What the gates go by.

    Attributes:
        min_pairs: comparisons of fewer traces and seeds prove nothing.
        max_regime_loss_ratio: by which the loss may be larger on any old regime.
        negligible_loss: differences of the loss, in [0, 1], up to this count as none.
        max_attainment_drop: by which the worst class's attainment may be lower, absolute.
        max_tokens_drop_ratio: by which tokens per second may be fewer.
        confidence: of all intervals.
    """

    min_pairs: int = 20
    max_regime_loss_ratio: float = 0.01
    negligible_loss: float = 0.001
    max_attainment_drop: float = 0.01
    max_tokens_drop_ratio: float = 0.02
    confidence: float = 0.95


Gate: TypeAlias = Callable[[Evidence, GateLimits], Verdict]


def schema(evidence: Evidence, _limits: GateLimits) -> Verdict:
    """Made for the features and the network of the release that would serve it."""
    found, needed = evidence.schema_hash, evidence.serving_schema_hash
    if found == needed:
        return Verdict("schema", passed=True, reason=f"schema {found}")
    return Verdict("schema", passed=False, reason=f"schema {found}, serving needs {needed}")


def calibration(evidence: Evidence, _limits: GateLimits) -> Verdict:
    """Compared on a simulator that is still the fleet's."""
    found, newest = evidence.calibration_hash, evidence.current_calibration_hash
    if found == newest:
        return Verdict("calibration", passed=True, reason=f"calibration {found}")
    return Verdict(
        "calibration", passed=False, reason=f"compared on calibration {found}, newest is {newest}"
    )


def finite(evidence: Evidence, _limits: GateLimits) -> Verdict:
    """Every output is a number, and so is every measurement."""
    checked, bad = evidence.outputs_checked, evidence.outputs_not_finite
    strange = [part.name for part in (*evidence.regimes, evidence.replay) if not part.finite]
    figures = {"outputs": float(checked), "not_finite": float(bad)}
    if checked < 1:
        return Verdict("finite", passed=False, reason="no output was checked", figures=figures)
    if bad or strange:
        where = f"; measurements of {', '.join(strange)}" if strange else ""
        reason = f"{bad} of {checked} outputs are not finite{where}"
        return Verdict("finite", passed=False, reason=reason, figures=figures)
    return Verdict("finite", passed=True, reason=f"{checked} outputs are finite", figures=figures)


def regressions(evidence: Evidence, limits: GateLimits) -> Verdict:
    """On no old regime a loss that is larger by more than a little.

    The estimate decides, not an interval's end: of dozens of intervals one is always wide. A
    regime on which nearly nothing is lost has no relative loss to speak of.
    """
    short = _too_few(evidence.regimes, limits)
    if short or not evidence.regimes:
        return Verdict("regressions", passed=False, reason=short or "there are no regimes")
    increases = {regime.name: _increase(regime, limits) for regime in evidence.regimes}
    figures = {f"loss_increase_ratio.{name}": value for name, value in increases.items()}
    worse = {
        name: value
        for name, value in increases.items()
        if not value <= limits.max_regime_loss_ratio
    }
    shown = worse or dict([max(increases.items(), key=lambda item: item[1])])
    changes = ", ".join(f"{name} {value:+.1%}" for name, value in shown.items())
    return Verdict(
        "regressions",
        passed=not worse,
        reason=f"loss of {len(increases)} regimes, {'worse on' if worse else 'at most'} {changes}",
        figures=figures,
    )


def _increase(regime: Comparison, limits: GateLimits) -> float:
    """Relative increase of the loss; 0 when it is absolutely small."""
    champion, candidate = regime.loss.rows
    if abs(float(mean_difference(champion, candidate))) <= limits.negligible_loss:
        return 0.0
    return float(relative_difference(champion, candidate))


def replay(evidence: Evidence, limits: GateLimits) -> Verdict:
    """On held-out windows the loss is smaller, beyond doubt."""
    interval = _interval(evidence.replay.loss, limits, relative_difference)
    passes = interval.high < 0
    return _compared("replay", evidence.replay, limits, interval, "loss", passes=passes)


def worst_class(evidence: Evidence, limits: GateLimits) -> Verdict:
    """On held-out windows the class that fares worst fares no worse, beyond doubt."""
    interval = _interval(evidence.replay.worst_attainment_ratio, limits, mean_difference)
    passes = interval.low >= -limits.max_attainment_drop
    return _compared("worst_class", evidence.replay, limits, interval, "attainment", passes=passes)


def throughput(evidence: Evidence, limits: GateLimits) -> Verdict:
    """On held-out windows no fewer tokens per second, beyond doubt."""
    interval = _interval(evidence.replay.tokens_per_s, limits, relative_difference)
    passes = interval.low >= -limits.max_tokens_drop_ratio
    return _compared("throughput", evidence.replay, limits, interval, "tokens/s", passes=passes)


GATES: tuple[Gate, ...] = (
    schema,
    calibration,
    finite,
    regressions,
    replay,
    worst_class,
    throughput,
)
"""In the order in which people read them."""


def judge(evidence: Evidence, limits: GateLimits | None = None) -> tuple[Verdict, ...]:
    """Every gate's verdict: all of them, so that one failure does not hide another."""
    return tuple(gate(evidence, limits or GateLimits()) for gate in GATES)


def passed(verdicts: Iterable[Verdict]) -> bool:
    """Whether there are verdicts, and all of them passed."""
    given = tuple(verdicts)
    return bool(given) and all(verdict.passed for verdict in given)


def _interval(pairs: Paired, limits: GateLimits, statistic: Statistic) -> Interval:
    return paired_interval(pairs, statistic, confidence=limits.confidence)


def _compared(
    gate: str,
    comparison: Comparison,
    limits: GateLimits,
    interval: Interval,
    quantity: str,
    *,
    passes: bool,
) -> Verdict:
    """A verdict on an interval; one of too few pairs passes no gate."""
    short = _too_few((comparison,), limits)
    span = f"{interval.estimate:+.1%} ({interval.low:+.1%} to {interval.high:+.1%})"
    return Verdict(
        gate,
        passed=passes and not short,
        reason=short or f"{quantity} {span} over {len(comparison.loss)} pairs",
        figures={
            "difference": interval.estimate,
            "low": interval.low,
            "high": interval.high,
            "pairs": float(len(comparison.loss)),
        },
    )


def _too_few(comparisons: Iterable[Comparison], limits: GateLimits) -> str:
    """Which comparison has too few pairs; empty: none."""
    for comparison in comparisons:
        if len(comparison.loss) < limits.min_pairs:
            return f"{comparison.name} has {len(comparison.loss)} pairs of {limits.min_pairs}"
    return ""
