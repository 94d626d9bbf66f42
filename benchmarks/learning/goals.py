"""What the learned weights are to reach, and whether they do. Pure.

By estimates, not by the ends of their intervals. A setting in which nothing is lost, or in
which there is no gap to close, decides nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.learning.findings import Findings, SettingFindings
from benchmarks.learning.intervals import LEAST_LOSS, Interval
from benchmarks.learning.units import BEST_STATIC, ELSEWHERE, LEARNED, RULE, VALUE

LEAST_HEADROOM = 0.05
"""Where there is less, the goal is not to lose."""
LEAST_GAP_CLOSED = 0.5
BELOW_VALUE = 0.30
BELOW_ELSEWHERE = 0.20
ABOVE_RULE = 0.01


@dataclass(frozen=True, slots=True)
class Goal:
    """One of them.

    Attributes:
        goal: in words.
        measured: likewise.
        held: None: there was nothing to decide it.
        missed_in: settings, where it is about each of them.
    """

    goal: str
    measured: str
    held: bool | None
    missed_in: tuple[str, ...] = ()


def goals_of(found: Findings) -> list[Goal]:
    """All goals."""
    worth = [one for one in found.settings if (_room(one) or 0.0) >= LEAST_HEADROOM]
    narrow = [one for one in found.settings if one not in worth]
    return [
        _everywhere(
            f"gap to the oracle closed by {LEAST_GAP_CLOSED:.0%} where the headroom is "
            f"{LEAST_HEADROOM:.0%} or more",
            worth,
            lambda one: _value(one.gap_closed()),
            lambda closed: closed >= LEAST_GAP_CLOSED,
        ),
        _everywhere(
            f"at most {ABOVE_RULE:.0%} above the best static weights where it is less",
            narrow,
            lambda one: _above(one, BEST_STATIC),
            lambda above: above <= ABOVE_RULE,
        ),
        _below(
            f"loss {BELOW_VALUE:.0%} below the values' weights, over all regimes",
            found.change(LEARNED, VALUE),
            BELOW_VALUE,
        ),
        _below(
            f"loss {BELOW_ELSEWHERE:.0%} below static weights tuned on the other regimes",
            found.change(LEARNED, ELSEWHERE),
            BELOW_ELSEWHERE,
        ),
        _everywhere(
            f"at most {ABOVE_RULE:.0%} above the rule, anywhere",
            found.settings,
            lambda one: _above(one, RULE),
            lambda above: above <= ABOVE_RULE,
        ),
        *(
            _everywhere(
                f"attainment of the worst class not below that under {base}",
                found.settings,
                lambda one, base=base: one.attainment[LEARNED] - one.attainment[base],  # type: ignore[misc]
                lambda gained: gained >= -LEAST_LOSS,
            )
            for base in (RULE, BEST_STATIC)
        ),
    ]


def _room(one: SettingFindings) -> float | None:
    return _value(one.headroom)


def _value(interval: Interval | None) -> float | None:
    return None if interval is None else interval.value


def _above(one: SettingFindings, base: str) -> float | None:
    """How much more is lost than under another policy; what is too little to matter counts as 0."""
    means = one.mean_losses
    more = means[LEARNED] - means[base]
    return 0.0 if abs(more) < LEAST_LOSS else _value(one.change(LEARNED, base))


def _everywhere(
    goal: str,
    settings: Iterable[SettingFindings],
    measure: Callable[[SettingFindings], float | None],
    holds: Callable[[float], bool],
) -> Goal:
    """A goal that each setting has to reach."""
    figures = {one.name: measure(one) for one in settings}
    decided = {name: figure for name, figure in figures.items() if figure is not None}
    missed = tuple(name for name, figure in decided.items() if not holds(figure))
    if not decided:
        return Goal(goal, "no setting decides it", None)
    low, high = min(decided.values()), max(decided.values())
    measured = f"in {len(decided) - len(missed)} of {len(decided)}, {low:+.1%} to {high:+.1%}"
    return Goal(goal, measured, not missed, missed)


def _below(goal: str, change: Interval | None, by: float) -> Goal:
    if change is None:
        return Goal(goal, "nothing is lost", None)
    measured = f"{change.value:+.1%} ({change.low:+.1%} to {change.high:+.1%})"
    return Goal(goal, measured, change.value <= -by)
