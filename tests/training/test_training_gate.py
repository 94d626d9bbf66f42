"""Each gate on evidence that it must pass, and on evidence that it must not."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.verdicts import Verdict, verdicts_from_json, verdicts_to_json
from training.gate import GATES, Comparison, Evidence, Paired, judge, passed
from training.gate.bootstrap import mean_difference, paired_interval, relative_difference

PAIRS = 30


def _paired(champion: float, candidate: float, *, noise: float = 0.1, seed: int = 0) -> Paired:
    """Pairs that have most of their noise in common, as runs of one trace and seed do."""
    random = np.random.default_rng(seed)
    common = random.normal(0, noise, PAIRS)
    own = random.normal(0, noise / 20, PAIRS)
    own -= own.mean()
    return Paired(tuple(champion + common), tuple(candidate + common + own))


def _comparison(
    name: str = "replay",
    *,
    loss: tuple[float, float] = (0.30, 0.25),
    worst: tuple[float, float] = (0.80, 0.80),
    tokens: tuple[float, float] = (1000.0, 1000.0),
) -> Comparison:
    return Comparison(name, _paired(*loss), _paired(*worst), _paired(*tokens, noise=10.0))


GOOD = Evidence(
    schema_hash="s1",
    serving_schema_hash="s1",
    calibration_hash="c1",
    current_calibration_hash="c1",
    outputs_checked=1000,
    outputs_not_finite=0,
    regimes=(_comparison("flash-crowd"), _comparison("stationary-0.6", loss=(0.2, 0.2))),
    replay=_comparison(),
)


def _failing(evidence: Evidence) -> set[str]:
    return {verdict.name for verdict in judge(evidence) if not verdict.passed}


def test_a_better_candidate_passes_every_gate_and_each_says_why() -> None:
    verdicts = judge(GOOD)
    assert passed(verdicts)
    assert [verdict.name for verdict in verdicts] == [
        "schema",
        "calibration",
        "finite",
        "regressions",
        "replay",
        "worst_class",
        "throughput",
    ]
    assert len(verdicts) == len(GATES)
    assert all(verdict.reason for verdict in verdicts)


def test_failure_27_a_candidate_of_another_schema_fails_and_both_hashes_are_named() -> None:
    (verdict,) = (one for one in judge(replace(GOOD, schema_hash="s2")) if not one.passed)
    assert verdict.name == "schema"
    assert "s2" in verdict.reason
    assert "s1" in verdict.reason


@pytest.mark.parametrize(
    ("evidence", "failing"),
    [
        (replace(GOOD, calibration_hash="c0"), {"calibration"}),
        (replace(GOOD, outputs_not_finite=1), {"finite"}),
        (replace(GOOD, outputs_checked=0), {"finite"}),
        (replace(GOOD, regimes=()), {"regressions"}),
        (
            replace(GOOD, regimes=(*GOOD.regimes, _comparison("drift", loss=(0.30, 0.32)))),
            {"regressions"},
        ),
        (replace(GOOD, replay=_comparison(loss=(0.30, 0.30))), {"replay"}),
        (replace(GOOD, replay=_comparison(loss=(0.30, 0.33))), {"replay"}),
        (replace(GOOD, replay=_comparison(worst=(0.80, 0.76))), {"worst_class"}),
        (replace(GOOD, replay=_comparison(tokens=(1000.0, 950.0))), {"throughput"}),
        (
            replace(GOOD, schema_hash="s2", replay=_comparison(tokens=(1000.0, 950.0))),
            {"schema", "throughput"},
        ),
    ],
)
def test_what_is_wrong_fails_its_own_gate_and_no_other(
    evidence: Evidence, failing: set[str]
) -> None:
    assert _failing(evidence) == failing
    assert not passed(judge(evidence))


def test_too_few_pairs_prove_nothing() -> None:
    one = Paired((0.3,), (0.1,))
    small = Comparison("replay", one, one, one)
    assert _failing(replace(GOOD, replay=small)) >= {"replay", "worst_class", "throughput"}
    assert _failing(replace(GOOD, regimes=(small,))) == {"regressions"}


def test_a_measurement_that_is_no_number_passes_no_gate_that_looks_at_it() -> None:
    loss = GOOD.replay.loss
    broken = replace(GOOD.replay, loss=Paired(loss.champion, (math.nan, *loss.candidate[1:])))
    assert _failing(replace(GOOD, replay=broken)) == {"finite", "replay"}
    infinite = replace(GOOD.replay, loss=Paired(loss.champion, (-math.inf, *loss.candidate[1:])))
    assert _failing(replace(GOOD, replay=infinite)) == {"finite", "replay"}


def test_a_regime_without_loss_is_no_reason_to_refuse() -> None:
    nothing = Paired((0.0,) * PAIRS, (0.0,) * PAIRS)
    hardly = Paired((0.0,) * PAIRS, (0.0005,) * PAIRS)
    lost = Paired((0.0,) * PAIRS, (0.01,) * PAIRS)
    for loss, failing in ((nothing, set()), (hardly, set()), (lost, {"regressions"})):
        quiet = replace(_comparison("quiet"), loss=loss)
        assert _failing(replace(GOOD, regimes=(quiet,))) == failing


def test_what_is_missing_never_passes() -> None:
    assert not passed(())
    with pytest.raises(ValueError, match="no pairs"):
        Paired((), ())
    with pytest.raises(ValueError, match="no pairs"):
        Paired((1.0,), (1.0, 2.0))
    with pytest.raises(ValueError, match="should be the same"):
        Comparison("x", Paired((1.0,), (1.0,)), Paired((1.0, 2.0), (1.0, 2.0)),
                   Paired((1.0,), (1.0,)))  # fmt: skip


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        common = random.normal(0, 1.0, PAIRS)
        candidate = common + 0.1 + random.normal(0, 0.2, PAIRS)
        pairs = Paired(tuple(common), tuple(candidate))
        interval = paired_interval(pairs, mean_difference, resamples=1000)
        covered += interval.low <= 0.1 <= interval.high
    assert 175 <= covered <= 199


def test_what_pairs_have_in_common_does_not_widen_the_interval() -> None:
    narrow = paired_interval(_paired(0.3, 0.25, noise=10.0), mean_difference)
    assert narrow.high - narrow.low < 1.0  # the two by themselves differ by 10 from run to run


@given(
    st.lists(st.tuples(st.floats(0.1, 1), st.floats(0.1, 1)), min_size=1, max_size=40),
    st.floats(0.5, 10.0),
)
def test_relative_difference_has_no_unit(pairs: list[tuple[float, float]], scale: float) -> None:
    champion, candidate = np.array(pairs).T
    before = relative_difference(champion, candidate)
    assert relative_difference(scale * champion, scale * candidate) == pytest.approx(before)


def test_the_same_evidence_gets_the_same_verdict() -> None:
    assert judge(GOOD) == judge(GOOD)


@given(
    st.lists(
        st.builds(
            Verdict,
            name=st.text(max_size=10),
            passed=st.booleans(),
            reason=st.text(max_size=30),
            figures=st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False,
                                    allow_infinity=False), max_size=3),
        ),
        max_size=4,
    )
)  # fmt: skip
def test_verdicts_survive_being_kept(verdicts: list[Verdict]) -> None:
    assert verdicts_from_json(verdicts_to_json(verdicts)) == tuple(verdicts)


def test_a_figure_that_is_no_number_is_kept_as_such() -> None:
    (back,) = verdicts_from_json(
        verdicts_to_json([Verdict("a", passed=True, reason="b", figures={"x": math.inf})])
    )
    assert math.isnan(back.figures["x"])


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"name": "a"}]', "3", '{"a": 1}'])
def test_text_without_verdicts_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
        verdicts_from_json(text)
