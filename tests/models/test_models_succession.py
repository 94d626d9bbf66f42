"""The audit trail, without a registry."""

import json

import pytest

from models.succession import (
    GATES_TAG,
    Action,
    Gates,
    Succession,
    gates_of,
    objection_to,
    predecessor,
    trail_of,
)
from models.verdicts import Verdict, verdicts_to_json

GOOD = Verdict("replay", passed=True, reason="loss -10%")
BAD = Verdict("throughput", passed=False, reason="tokens/s -5%")


def _entry(version: str, replaced: str | None, action: Action = Action.PROMOTE) -> Succession:
    return Succession(version, replaced, "ada", "why", "2026-01-01T00:00:00.000000+00:00", action)


def test_trail_is_in_the_order_of_time_and_other_tags_are_no_part_of_it() -> None:
    first, second = _entry("1", None), _entry("2", "1")
    tags = {
        "promotion.20260102T000000.000000Z": second.json,
        "promotion.20260101T000000.000000Z": first.json,
        "promotion.note": "not JSON",
        "promotion.other": "[1]",
        "team": "serving",
    }
    assert trail_of(tags) == (first, second)


def test_an_entry_of_an_older_release_was_a_promotion_that_nobody_judged() -> None:
    old = {"version": "2", "replaced": "1", "actor": "ada", "reason": "x", "at": "2026"}
    (entry,) = trail_of({"promotion.1": json.dumps(old)})
    assert (entry.action, entry.gates, entry.forced) == (Action.PROMOTE, Gates.NONE, False)


@pytest.mark.parametrize(("actor", "reason"), [("", "why"), ("ada", " ")])
def test_nobody_changes_the_champion_namelessly_or_for_no_reason(actor: str, reason: str) -> None:
    with pytest.raises(ValueError, match="needs an actor and a reason"):
        Succession("1", None, actor, reason, "2026")


def test_gates_in_one_word_and_the_objection_names_the_gate() -> None:
    good, bad = ({GATES_TAG: verdicts_to_json([GOOD, *more])} for more in ([], [BAD]))
    assert (gates_of({}), gates_of(good), gates_of(bad)) == (Gates.NONE, Gates.PASSED, Gates.FAILED)
    assert (objection_to({}), objection_to(good)) == (None, None)
    assert objection_to(bad) == "gate throughput: tokens/s -5%"


def test_an_unreadable_record_of_verdicts_is_an_objection() -> None:
    assert gates_of({GATES_TAG: "?"}) is Gates.FAILED
    assert "record" in str(objection_to({GATES_TAG: "?"}))


def test_a_version_that_was_rolled_back_is_objected_to_until_it_is_promoted_again() -> None:
    tags = {"promotion.at": "2026-01-01", "rollback.at": "2026-01-02", "rollback.reason": "slow"}
    assert objection_to(tags) == "it was rolled back at 2026-01-02: slow"
    assert objection_to({**tags, "promotion.at": "2026-01-03"}) is None


def test_predecessor_is_whom_the_version_replaced_last() -> None:
    trail = [_entry("1", None), _entry("2", "1"), _entry("3", "2"),
             _entry("2", "3", Action.ROLL_BACK)]  # fmt: skip
    assert predecessor(trail, "2") == "1"
    assert predecessor(trail, "3") == "2"
    assert predecessor(trail, "1") is None
    assert predecessor(trail, "9") is None
