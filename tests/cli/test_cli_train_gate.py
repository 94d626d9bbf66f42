"""What a run says of its gates."""

import json

import pytest

from cli.train_gate import GatedRun, failed_gates, reason_of
from models.succession import GATES_TAG
from models.verdicts import Verdict, verdicts_to_json
from models.versions import ModelVersion

PASSED = Verdict("schema", passed=True, reason="schema s1")
FAILED = Verdict("replay", passed=False, reason="loss +2.0%", figures={"difference": 0.02})


def version_with(*verdicts: Verdict) -> ModelVersion:
    tags = {GATES_TAG: verdicts_to_json(verdicts)} if verdicts else {}
    return ModelVersion("7", ("challenger",), 0.0, None, {}, None, tags)


def test_a_refusal_is_a_line_for_each_gate_and_says_that_nothing_else_changes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    GatedRun(version_with(PASSED, FAILED), held_back=failed_gates([PASSED, FAILED])).tell()
    told = " ".join(capsys.readouterr().out.split())
    assert "schema passed schema s1" in told
    assert "replay failed loss +2.0%" in told
    assert "version 7 stays @challenger, nothing else changes: gate replay: loss +2.0%" in told


def test_a_promotion_is_told_and_its_reason_names_every_gate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    GatedRun(version_with(PASSED), promoted=True).tell()
    assert "all gates passed: version 7 is @champion" in capsys.readouterr().out
    assert reason_of([PASSED]) == "passed schema (schema s1)"


def test_failing_without_having_asked_for_a_promotion_is_told_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    GatedRun(version_with(FAILED)).tell()
    assert "version 7 did not pass: gate replay: loss +2.0%" in capsys.readouterr().out


def test_programs_get_the_verdicts_with_their_figures() -> None:
    document = json.loads(json.dumps(GatedRun(version_with(PASSED, FAILED)).document))
    assert (document["version"], document["outcome"], document["promoted"]) == (
        "7",
        "failed",
        False,
    )
    assert document["gates"][1] == {
        "name": "replay",
        "passed": False,
        "reason": "loss +2.0%",
        "figures": {"difference": 0.02},
    }
    unjudged = GatedRun(version_with()).document
    assert (unjudged["gates"], unjudged["outcome"]) == ([], "none")
