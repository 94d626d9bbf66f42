"""What was found, as tables and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict

from rich.box import SIMPLE
from rich.console import Group
from rich.table import Table

from benchmarks.learning.findings import Findings, SettingFindings
from benchmarks.learning.goals import Goal, goals_of
from benchmarks.learning.intervals import Interval
from benchmarks.learning.units import BEST_STATIC, ELSEWHERE, LEARNED, RULE, VALUE

_BASES = (VALUE, BEST_STATIC, ELSEWHERE, RULE)


def as_json(found: Findings) -> dict[str, object]:
    """Everything, in the form that result files have."""
    return {
        "model": found.model,
        "regimes": {one.name: _setting_json(one) for one in found.settings},
        "summary": {
            "change": {base: _interval_json(found.change(LEARNED, base)) for base in _BASES},
            "goals": [asdict(goal) for goal in goals_of(found)],
        },
    }


def as_tables(found: Findings) -> Group:
    """For a terminal of 80 columns."""
    lates = list(dict.fromkeys(one.late for one in found.settings))
    by_late = [[one for one in found.settings if one.late == late] for late in lates]
    return Group(
        _headroom(found.settings),
        *(_losses(found.policies, own) for own in by_late),
        *(_attainment(found.policies, own) for own in by_late),
        _learned(found),
        _ahead(found.settings),
        _goals(goals_of(found)),
    )


def _setting_json(one: SettingFindings) -> dict[str, object]:
    headroom, own_headroom, closed = one.headroom, one.own_headroom, one.gap_closed()
    return {
        "regime": one.regime,
        "late": one.late,
        "units": len(one.losses[LEARNED]),
        "headroom": _value(headroom),
        "headroom_ci": _ends(headroom),
        "own_headroom": _value(own_headroom),
        "own_headroom_ci": _ends(own_headroom),
        "gap_closed": _value(closed),
        "gap_closed_ci": _ends(closed),
        "gap_closed_by": {
            policy: _value(one.gap_closed(policy)) for policy in one.losses if policy != LEARNED
        },
        "change": {base: _interval_json(one.change(LEARNED, base)) for base in _BASES},
        "loss": one.mean_losses,
        "worst_class_attainment": dict(one.attainment),
        "ahead_of_learned": one.ahead,
    }


def _headroom(settings: Sequence[SettingFindings]) -> Table:
    table = _table("Headroom: what of the best static weights' loss a clairvoyant spares")
    table.add_column("regime", no_wrap=True)
    for column in ("best static", "oracle", "headroom", "95%", "of its own static"):
        table.add_column(column, justify="right")
    for one in settings:
        means = one.mean_losses
        table.add_row(
            one.name,
            f"{means[BEST_STATIC]:.4f}",
            f"{means['oracle']:.4f}",
            _percent(one.headroom, signed=False),
            _range(one.headroom, signed=False),
            _percent(one.own_headroom, signed=False),
        )
    return table


def _losses(policies: Sequence[str], settings: Sequence[SettingFindings]) -> Table:
    rows = {
        policy: [
            f"{one.mean_losses[policy]:.3f}" if policy in one.losses else "-" for one in settings
        ]
        for policy in policies
    }
    return _by_policy(f"Mean loss, late: {settings[0].late}", rows, settings)


def _attainment(policies: Sequence[str], settings: Sequence[SettingFindings]) -> Table:
    rows = {
        policy: [
            f"{one.attainment[policy]:.1%}".rstrip("%") if policy in one.attainment else "-"
            for one in settings
        ]
        for policy in policies
    }
    title = f"Percent of the worst class that met its objectives, late: {settings[0].late}"
    return _by_policy(title, rows, settings)


def _by_policy(
    title: str, rows: dict[str, list[str]], settings: Sequence[SettingFindings]
) -> Table:
    table = _table(title, padding=0)
    table.add_column("policy", no_wrap=True)
    for one in settings:
        header = one.regime.replace("stationary", "steady").replace("-", "\n")
        table.add_column(header, justify="right", no_wrap=True)
    for policy, cells in rows.items():
        table.add_row(policy, *cells)
    return table


def _learned(found: Findings) -> Table:
    table = _table(f"The learned weights ({found.model}): loss against others, gap closed")
    table.add_column("regime", no_wrap=True)
    for base in _BASES:
        table.add_column(base.replace("-", "\n"), justify="right")
    table.add_column("gap\nclosed", justify="right")
    table.add_column("95%", justify="right", no_wrap=True)
    for one in found.settings:
        table.add_row(
            one.name,
            *(_percent(one.change(LEARNED, base)) for base in _BASES),
            _percent(one.gap_closed()),
            _range(one.gap_closed()),
        )
    table.add_row("all", *(_percent(found.change(LEARNED, base)) for base in _BASES))
    return table


def _ahead(settings: Sequence[SettingFindings]) -> Table:
    table = _table("What loses less than the learned weights, the best first")
    table.add_column("regime", no_wrap=True)
    table.add_column("policies")
    for one in settings:
        table.add_row(one.name, ", ".join(one.ahead) or "-")
    return table


def _goals(goals: Sequence[Goal]) -> Table:
    table = _table("Goals")
    for column in ("goal", "measured", ""):
        table.add_column(column)
    for goal in goals:
        verdict = "undecided" if goal.held is None else "held" if goal.held else "missed"
        missed = f"\nnot in {', '.join(goal.missed_in)}" if goal.missed_in else ""
        table.add_row(goal.goal, goal.measured + missed, verdict)
    return table


def _table(title: str, padding: int = 1) -> Table:
    return Table(title=title, box=SIMPLE, pad_edge=False, padding=(0, padding, 0, 0))


def _percent(interval: Interval | None, *, signed: bool = True) -> str:
    return "-" if interval is None else _signed(interval.value, signed=signed)


def _range(interval: Interval | None, *, signed: bool = True) -> str:
    if interval is None:
        return "-"
    return f"{_signed(interval.low, signed=signed)}, {_signed(interval.high, signed=signed)}"


def _signed(ratio: float, *, signed: bool) -> str:
    return f"{ratio:+.0%}" if signed else f"{ratio:.0%}"


def _value(interval: Interval | None) -> float | None:
    return None if interval is None else interval.value


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]


def _interval_json(interval: Interval | None) -> dict[str, object] | None:
    return None if interval is None else {"value": interval.value, "ci": _ends(interval)}
