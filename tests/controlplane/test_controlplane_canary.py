"""Turns, losses and the test of a canary."""

import itertools
import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.canary import (
    Arm,
    BettingTest,
    BlockCounts,
    Moment,
    Outcome,
    Timetable,
    Trial,
    TrialLimits,
    block_loss,
    choose_engines,
)

TABLE = Timetable(start_s=100.0, block_s=60.0, washout_s=15.0, seed="trial-7")


@given(st.text(max_size=8), st.integers(0, 1000))
def test_each_pair_of_blocks_holds_both_arms(seed: str, pair: int) -> None:
    table = Timetable(0.0, 60.0, 0.0, seed)
    assert {table.arm(2 * pair), table.arm(2 * pair + 1)} == set(Arm)


def test_chance_decides_which_arm_of_a_pair_comes_first() -> None:
    first = [TABLE.arm(2 * pair) for pair in range(400)]
    assert 160 < first.count(Arm.CHALLENGER) < 240
    alternating = itertools.pairwise(first)
    assert 140 < sum(one is other for one, other in alternating) < 260, "not by turns either"


def test_a_block_counts_after_its_washout_only() -> None:
    assert not TABLE.at(99.0).counts
    assert (TABLE.at(114.9).block, TABLE.at(114.9).counts) == (0, False)
    assert (TABLE.at(115.0).block, TABLE.at(115.0).counts) == (0, True)
    assert (TABLE.at(160.0).block, TABLE.at(160.0).counts) == (1, False)
    assert TABLE.at(100.0 + 60.0 * 7 + 30).pair == 3
    with pytest.raises(ValueError, match="below block_s"):
        Timetable(0.0, 60.0, 60.0, "x")


@given(st.sets(st.text(min_size=1, max_size=6), min_size=1, max_size=40), st.floats(0.0, 1.0))
def test_some_engines_are_canaries_and_never_all_of_several(
    engine_ids: set[str], ratio: float
) -> None:
    chosen = choose_engines(engine_ids, ratio=ratio, seed="a")
    assert chosen <= engine_ids
    assert 1 <= len(chosen) <= max(1, len(engine_ids) - 1)
    assert abs(len(chosen) - ratio * len(engine_ids)) <= 1


@given(st.sets(st.text(min_size=1, max_size=6), min_size=3, max_size=40))
def test_an_engine_that_leaves_changes_at_most_one_other(engine_ids: set[str]) -> None:
    gone = min(engine_ids)
    before = choose_engines(engine_ids, ratio=0.3, seed="a")
    after = choose_engines(engine_ids - {gone}, ratio=0.3, seed="a")
    assert len(after - before) <= 1
    assert len(before - after - {gone}) <= 1


def test_loss_is_weighted_by_value_and_survives_an_engines_restart() -> None:
    values = {"vip": 8.0, "batch": 1.0}
    counts = [
        BlockCounts("vip", 100, 110, 5, 10),
        BlockCounts("batch", 50, 70, 0, 0),
        BlockCounts("vip", 900, 10, 90, 0),  # it began anew
        BlockCounts("other", 0, 99, 0, 99),  # nobody gave it a value
    ]
    assert block_loss(counts, values) == pytest.approx(8 * 5 / (8 * 10 + 20 + 8 * 10))


def test_a_block_without_requests_has_no_loss() -> None:
    assert block_loss([BlockCounts("vip", 5, 5, 1, 1)], {"vip": 8.0}) is None
    assert block_loss([], {}) is None


def test_evidence_is_the_mean_wealth_of_the_stakes() -> None:
    test = BettingTest()
    assert test.log_evidence == 0.0
    observations = [0.3, -0.2, 1.0, -1.0, 0.0, 0.7]
    for one in observations:
        test.update(one)
    bets = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
    wealth = np.mean([np.prod([1 + bet * one for one in observations]) for bet in bets])
    assert test.log_evidence == pytest.approx(math.log(wealth))


@pytest.mark.parametrize("observation", [-1.1, math.nan, math.inf])
def test_an_observation_out_of_range_is_refused(observation: float) -> None:
    with pytest.raises(ValueError, match="at least -1"):
        BettingTest().update(observation)


def test_looking_after_every_observation_keeps_the_error_at_its_level() -> None:
    """At the edge of the hypothesis, in 1000 trials that stop whenever it pays."""
    random = Random(3)

    def ever_rejects() -> bool:
        test = BettingTest()
        for _ in range(300):
            test.update(random.choice((-0.5, 0.5)) * random.random())
            if test.rejects(0.05):
                return True
        return False

    assert sum(ever_rejects() for _ in range(1000)) <= 65


def _run(
    trial: Trial, challenger: float, champion: float, *, seed: int = 0, pairs: int = 500
) -> Trial:
    """Blocks of 100 requests under a load that drifts through the day."""
    random = Random(seed)
    for block in range(2 * pairs):
        moment = Moment(block, TABLE.arm(block), counts=True)
        base = challenger if moment.arm is Arm.CHALLENGER else champion
        rate = min(1.0, max(0.0, base + 0.05 * math.sin(block / 50)))
        late = sum(random.random() < rate for _ in range(100))
        if trial.block_ended(moment, late / 100) is not Outcome.GOES_ON:
            break
    return trial


def test_a_harmful_challenger_is_stopped_within_the_hour() -> None:
    trial = _run(Trial(TrialLimits()), challenger=0.4, champion=0.1)
    assert trial.outcome is Outcome.HARM
    assert trial.pairs <= 30  # two minutes each
    assert trial.mean_difference is not None
    assert trial.mean_difference > 0.2
    assert "against the champion's over" in trial.reason


@pytest.mark.parametrize("challenger", [0.1, 0.05])
def test_a_challenger_that_is_no_worse_is_let_through(challenger: float) -> None:
    assert _run(Trial(TrialLimits()), challenger, champion=0.1).outcome is Outcome.NO_WORSE


def test_equal_models_are_hardly_ever_called_harmful() -> None:
    outcomes = [_run(Trial(TrialLimits()), 0.2, 0.2, seed=seed).outcome for seed in range(40)]
    assert outcomes.count(Outcome.HARM) <= 4


def test_a_difference_between_nothing_and_the_margin_ends_undecided_in_time() -> None:
    trial = _run(Trial(TrialLimits(margin=0.02, max_pairs=20)), challenger=0.11, champion=0.10)
    assert (trial.outcome, trial.pairs) == (Outcome.UNDECIDED, 20)


def test_an_interrupted_pair_tells_nothing_and_an_ended_trial_stays_ended() -> None:
    trial = Trial(TrialLimits(max_pairs=1))
    challenger, champion = (Moment(0, arm, counts=True) for arm in (Arm.CHALLENGER, Arm.CHAMPION))
    trial.block_ended(challenger, 1.0)
    trial.block_ended(Moment(1, Arm.CHAMPION, counts=True), None)
    trial.block_ended(Moment(3, Arm.CHAMPION, counts=True), 0.0)
    assert (trial.pairs, trial.mean_difference) == (0, None)
    trial.block_ended(Moment(2, Arm.CHALLENGER, counts=True), 0.5)
    assert (trial.pairs, trial.mean_difference) == (1, 0.5)
    assert trial.outcome is Outcome.UNDECIDED
    assert trial.block_ended(champion, 0.0) is Outcome.UNDECIDED
    with pytest.raises(ValueError, match="in \\[0, 1\\]"):
        trial.block_ended(champion, 1.5)
