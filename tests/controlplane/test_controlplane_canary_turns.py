"""Turns on canaries, and what is to be tried: without engines, registry and store."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from controlplane.canary import (
    Arm,
    Contest,
    Kind,
    Outcome,
    Timetable,
    Trial,
    TrialLimits,
    TrialRecord,
    Turns,
    contest_for,
    why_over,
)
from controlplane.status import ClassCounts, EngineStatus, Report
from controlplane.store.sqlite import SqliteStore
from models.succession import GATES_TAG, Action, Lineup, Succession
from models.verdicts import Verdict, verdicts_to_json

EPOCH = 7
VALUES = {"vip": 8.0, "batch": 1.0}
TABLE = Timetable(start_s=0.0, block_s=4.0, washout_s=1.0, seed="x")


def engine(
    name: str, version: int, *counts: ClassCounts, neutral: bool = False, stream: int = 1
) -> EngineStatus:
    report = Report(version, EPOCH, neutral=neutral, kv_usage_ratio=0.0, counts=counts)
    return EngineStatus(name, "0.32", version, None, report, stream)


def loss_of_block(turns: Turns, readings: list[list[EngineStatus]]) -> float | None:
    """Of block 0, which version 10 came before; one reading a second."""
    for second, engines in enumerate(readings):
        ended = turns.tick(float(second), engines, (EPOCH, 10)).ended
    assert ended is not None
    assert ended.moment.block == 0
    return ended.loss


def readings(**change: object) -> Iterator[list[EngineStatus]]:
    """At the seconds 0 to 4: the wash-out ends at 1, the block at 4."""
    violated = (0, 5, 6, 7, 8)
    for second in range(5):
        counts = ClassCounts("vip", 100 + 10 * second, 20 + violated[second])
        status = engine("a", 11 + second, counts)
        yield [replace(status, **change) if second == 4 else status]


@pytest.fixture
def turns() -> Turns:
    return Turns(TABLE, ratio=0.5, values=VALUES)


def test_a_block_is_measured_from_its_washout_to_its_end(turns: Turns) -> None:
    assert loss_of_block(turns, list(readings())) == pytest.approx(3 / 30)


def test_classes_count_by_value_and_a_new_one_from_nothing(turns: Turns) -> None:
    both = (ClassCounts("vip", 10, 0), ClassCounts("batch", 8, 8))
    seen = [[engine("a", 11)], [engine("a", 11)], [], [], [engine("a", 12, *both)]]
    assert loss_of_block(turns, seen) == pytest.approx(8 / 88)


def test_what_a_canary_did_under_another_stream_or_snapshot_tells_nothing() -> None:
    last = list(readings())[4][0]
    report = last.last_report
    assert report is not None
    for change in (
        {"stream": 2},
        {"last_report": None},
        {"last_report": replace(report, neutral=True)},
        {"last_report": replace(report, applied_version=10)},
        {"last_report": replace(report, applied_epoch=EPOCH - 1)},
        {"engine_id": "b"},
    ):
        turns = Turns(TABLE, ratio=0.5, values=VALUES)
        assert loss_of_block(turns, list(readings(**change))) is None, change


def test_a_canary_that_takes_its_snapshot_late_is_measured_from_then_on(turns: Turns) -> None:
    seen = list(readings())
    seen[1] = [engine("a", 10)]
    assert loss_of_block(turns, seen) == pytest.approx(2 / 20)


def test_a_disturbed_block_tells_nothing(turns: Turns) -> None:
    seen = list(readings())
    turns.disturb()  # before there is any block
    turns.tick(0.0, seen[0], (EPOCH, 10))
    turns.disturb()
    assert loss_of_block(turns, seen) is None


def test_the_canaries_of_a_pair_stay_and_are_drawn_anew_for_the_next(turns: Turns) -> None:
    few, many = ["a"], ["a", "b", "c", "d"]
    drawn = []
    for second in range(24):
        names = few if second < 2 else many
        turn = turns.tick(float(second), [engine(name, 11) for name in names], (EPOCH, 10))
        drawn.append(turn.canaries)
    assert set(drawn[:8]) == {frozenset({"a"})}
    assert {len(canaries) for canaries in drawn[8:]} == {2}
    assert len(set(drawn[8:])) == 1


def test_without_an_engine_a_turn_has_no_canaries_and_no_loss(turns: Turns) -> None:
    assert turns.tick(0.0, [], (EPOCH, 10)).canaries == frozenset()
    assert loss_of_block(turns, [[]] * 5) is None


def test_a_resumed_trial_stands_where_it_stood_and_no_further() -> None:
    limits, random = TrialLimits(max_pairs=50), Random(4)
    differences = [random.uniform(-0.2, 0.6) for _ in range(100)]
    whole = Trial.resumed(limits, differences)
    assert whole.outcome is not Outcome.GOES_ON
    part = Trial.resumed(limits, differences[: whole.pairs - 1])
    assert part.outcome is Outcome.GOES_ON
    assert Trial.resumed(limits, [*part.differences, *differences[part.pairs :]]).reason == (
        whole.reason
    )
    assert Trial.resumed(limits, whole.differences).outcome is whole.outcome


def tags(*, passed: bool = True, **more: str) -> dict[str, str]:
    verdict = Verdict("replay", passed=passed, reason="measured")
    return {GATES_TAG: verdicts_to_json([verdict])} | more


NOW_S = 1_700_000_000.0
PROMOTED = Succession("5", "4", "eve", "better", "2023-11-14T22:13:00+00:00")  # 20 s before
LINEUP = Lineup("5", "6", "4", tags(), None)
TRIAL, WATCH = Contest(Kind.TRIAL, "6", "5"), Contest(Kind.WATCH, "5", "4", PROMOTED.at)


@pytest.mark.parametrize(
    ("lineup", "wanted"),
    [
        (LINEUP, TRIAL),
        (replace(LINEUP, champion=None), None),
        (replace(LINEUP, challenger=None, challenger_tags={}), None),
        (replace(LINEUP, challenger="5"), None),
        (replace(LINEUP, challenger_tags={}), None),
        (replace(LINEUP, challenger_tags=tags(passed=False)), None),
        (replace(LINEUP, challenger_tags=tags(**{"canary.outcome": "undecided"})), None),
        (replace(LINEUP, challenger_tags=tags(**{"rollback.at": "2023"})), None),
        (replace(LINEUP, last_change=PROMOTED), WATCH),
        (replace(LINEUP, last_change=replace(PROMOTED, at="2023-11-13T22:13:00+00:00")), TRIAL),
        (replace(LINEUP, last_change=replace(PROMOTED, action=Action.ROLL_BACK)), TRIAL),
        (replace(LINEUP, last_change=replace(PROMOTED, replaced=None)), TRIAL),
        (replace(LINEUP, last_change=PROMOTED, previous="3"), TRIAL),
        (replace(LINEUP, last_change=PROMOTED, champion="7"), Contest(Kind.TRIAL, "6", "7")),
    ],
)
def test_what_is_to_be_tried(lineup: Lineup, wanted: Contest | None) -> None:
    assert contest_for(lineup, watched=None, now_unix_s=NOW_S, watch_s=3600.0) == wanted


def test_a_promotion_that_was_watched_makes_room_for_a_trial() -> None:
    lineup = replace(LINEUP, last_change=PROMOTED)
    found = contest_for(lineup, watched=PROMOTED.at, now_unix_s=NOW_S, watch_s=3600.0)
    assert found == TRIAL
    assert contest_for(lineup, watched=None, now_unix_s=NOW_S, watch_s=0.0) == TRIAL


def test_who_serves_and_who_is_the_guest() -> None:
    assert (TRIAL.serving, TRIAL.guest, TRIAL.guest_arm) == ("5", "6", Arm.CHALLENGER)
    assert (WATCH.serving, WATCH.guest, WATCH.guest_arm) == ("5", "4", Arm.CHAMPION)


@pytest.mark.parametrize(
    ("contest", "lineup", "why"),
    [
        (TRIAL, replace(LINEUP, champion="7"), "version 7 is champion now"),
        (TRIAL, replace(LINEUP, challenger="8"), "version 8 is the challenger now"),
        (TRIAL, replace(LINEUP, challenger_tags=tags(passed=False)), "gate replay: measured"),
        (TRIAL, replace(LINEUP, challenger_tags={}), "its gates are not known"),
        (WATCH, LINEUP, "the time to watch is up"),
    ],
)
def test_why_a_contest_is_over_without_an_outcome(
    contest: Contest, lineup: Lineup, why: str
) -> None:
    assert why_over(contest, lineup).startswith(why)


@pytest.mark.parametrize("contest", [TRIAL, WATCH])
def test_the_store_gives_back_what_is_remembered_of_a_trial(
    store: SqliteStore, contest: Contest
) -> None:
    assert store.trial() is None
    record = TrialRecord(contest, NOW_S, (0.1, -0.25), Outcome.HARM, "loss", watched="2023")
    store.set_trial(record)
    assert store.trial() == record
