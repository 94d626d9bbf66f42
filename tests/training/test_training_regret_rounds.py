"""A training goes on where it was stopped; a policy is compared with the rule in pairs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from models.bundle import Bundle
from training.closed_loop.controller import unguarded
from training.errors import OtherTraining
from training.regret.learn import LearnOptions
from training.regret.lessons import LessonOptions
from training.regret.rounds import RoundOptions, Training
from training.regret.trial import FEWEST_PAIRS, Pair, compare, standing, standings

SMALL = RoundOptions(
    rounds=2,
    worlds=4,
    holdout=2,
    duration_s=60.0,
    lessons=LessonOptions(states=2, candidates=8, futures=1, horizon_ticks=2, after_ticks=1),
    learn=LearnOptions(epochs=2),
)


class _Stop(Exception):
    """Stands for Ctrl-C."""


def pair(rule: float, learned: float, regime: str = "stationary", worst: float = 0.1) -> Pair:
    return Pair(0, regime, 0.9, rule, learned, 0.1, worst)


@pytest.mark.system
def test_a_stopped_training_goes_on_and_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    def stop_after_first_round(what: str) -> None:
        said.append(what)
        if len(said) == SMALL.worlds + 2:
            raise _Stop

    said: list[str] = []
    whole = Training(tmp_path / "whole", SMALL, unguarded, processes=2)
    expected = whole.run(said.append)
    assert len(said) == whole.parts == whole.parts_done == 10
    said.clear()
    with pytest.raises(_Stop):
        Training(tmp_path / "cut", SMALL, unguarded, processes=1).run(stop_after_first_round)
    resumed = Training(tmp_path / "cut", SMALL, unguarded, processes=1)
    assert (resumed.done, resumed.parts_done) == (1, 5)
    found = resumed.run(lambda _what: None)
    for name, tensor in expected.network.state_dict().items():
        assert torch.equal(found.network.state_dict()[name], tensor), name
    assert resumed.done == 2


def test_a_folder_belongs_to_one_training(tmp_path: Path) -> None:
    Training(tmp_path, SMALL, unguarded, processes=1)
    Training(tmp_path, SMALL, unguarded, processes=2)
    with pytest.raises(OtherTraining):
        Training(tmp_path, replace(SMALL, seed=1), unguarded, processes=1)


def test_before_the_first_round_the_policy_is_the_rule(tmp_path: Path) -> None:
    training = Training(tmp_path, SMALL, unguarded, processes=1)
    assert training.done == training.parts_done == 0
    assert training.policy(0).provenance.origin == "untrained"


def test_an_untrained_policy_loses_what_the_rule_loses() -> None:
    found = compare(5, bundle=Bundle.untrained(), guard=unguarded, duration_s=60.0)
    assert found.learned == found.rule
    assert found.learned_worst == found.rule_worst


def test_standing_is_of_pairs() -> None:
    found = standing([pair(1.0, 0.9), pair(0.2, 0.1), pair(0.3, 0.2)])
    assert found.change == pytest.approx(-0.1)
    assert found.low == pytest.approx(-0.1)  # worlds differ, their differences do not
    assert found.high == pytest.approx(-0.1)
    assert found.change_ratio == pytest.approx(-0.1 / 0.5)
    assert found.wins == 3


def test_few_pairs_or_an_interval_with_zero_or_a_worse_worst_class_beat_nothing() -> None:
    enough = [pair(0.5, 0.4)] * FEWEST_PAIRS
    assert standing(enough).beats_the_rule
    assert not standing(enough[1:]).beats_the_rule
    assert not standing([*enough, pair(0.1, 4.0)]).beats_the_rule
    assert not standing([pair(0.5, 0.4, worst=0.2)] * FEWEST_PAIRS).beats_the_rule


def test_regimes_stand_for_themselves_and_all_at_the_end() -> None:
    found = standings([pair(1.0, 0.5, "b"), pair(1.0, 1.5, "a"), pair(1.0, 0.7, "b")])
    assert list(found) == ["a", "b", "all"]
    assert [row.pairs for row in found.values()] == [1, 2, 3]
    assert found["b"].learned == pytest.approx(0.6)


def test_no_pairs_have_no_standing() -> None:
    with pytest.raises(ValueError, match="no pairs"):
        standing([])
