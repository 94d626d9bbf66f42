"""What a rehearsal examines, and what it leaves as it was."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from steering_networks import leaning, lived_history

from models.bundle import Bundle
from models.lstm import STEERING_ROW, ResidualLstm
from models.window import Window
from training.closed_loop.controller import unguarded
from training.dataset import build_examples
from training.fit import FitOptions, WarmStart, fit
from training.online.anchor import Anchor
from training.regret.batches import grouped
from training.regret.learn import LearnOptions, learn
from training.regret.lessons import Lesson, LessonOptions
from training.rehearsal.learning import (
    Examination,
    Practice,
    RehearsalOptions,
    rehearse,
    worlds_of,
)
from training.rehearsal.worlds import OwnWorld, Replayed
from training.simulator.calibration import REFERENCE_ENGINE
from training.simulator.model import Fleet
from training.simulator.regimes import REGIMES
from training.simulator.traffic import REFERENCE
from training.trials.evidence import FIRST_REGIME_SEED, FIRST_REPLAY_SEED

CLASSES = tuple(kind.task_class for kind in REFERENCE)
SMALL = RehearsalOptions(
    worlds=6,
    duration_s=60.0,
    processes=1,
    lessons=LessonOptions(states=2, candidates=8, futures=1, horizon_ticks=2, after_ticks=1),
    learn=LearnOptions(epochs=2),
)


@pytest.fixture(scope="module")
def lived() -> Window:
    return lived_history(1200.0, 0.95)


@pytest.fixture(scope="module")
def practice(lived: Window) -> Practice:
    stretches = (lived.between(0, 100), lived.between(120, 200))
    return Practice(None, CLASSES, stretches, Fleet(REFERENCE_ENGINE.engine), seed=2)


@pytest.fixture(scope="module")
def lessons(practice: Practice) -> list[Lesson]:
    examine = Examination(None, unguarded, SMALL.lessons)
    return [lesson for world in worlds_of(practice, SMALL)[:2] for lesson in examine(world)]


def test_every_second_world_is_a_replay_and_all_regimes_come_in_turn(practice: Practice) -> None:
    worlds = worlds_of(practice, replace(SMALL, worlds=2 * len(REGIMES) + 1))
    replays = [one for one in worlds if isinstance(one, Replayed)]
    regimes = [one for one in worlds if isinstance(one, OwnWorld)]
    assert worlds[0::2] == replays
    assert worlds[1::2] == regimes
    assert [one.regime for one in regimes] == sorted(REGIMES)
    assert {one.stretch.steps for one in replays} == {60}
    seeds = [world.seed for world in worlds]
    for first, after in pairwise((FIRST_REGIME_SEED, FIRST_REPLAY_SEED, max(seeds))):
        assert not any(first <= seed < first + 100_000 for seed in seeds)
        assert after > first


def test_an_anchor_keeps_what_is_learned_near_the_champion(lessons: list[Lesson]) -> None:
    champion = Bundle.untrained(5).network

    def moved(anchor: Anchor | None) -> float:
        batches = grouped(lessons)
        options = LearnOptions(epochs=4, weight_decay=0.0)
        found = learn(champion, batches, batches, options, anchor=anchor).network
        pairs = zip(found.parameters(), champion.parameters(), strict=True)
        return sum((one - other).detach().square().sum().item() for one, other in pairs)

    assert moved(Anchor(champion, 100.0)) < 0.5 * moved(None)


def test_a_forecast_is_learned_without_touching_what_steers(lived: Window) -> None:
    start = leaning(0.7).network
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in start.lstm.parameters():
            parameter.uniform_(-0.2, 0.2)
    examples = build_examples([lived], CLASSES)
    options = FitOptions(max_epochs=3, weight_decay=0.1)
    warm = WarmStart(start, 0.0, kept=None, forecast_only=True)
    found = fit(examples, options, warm=warm).network
    features = torch.from_numpy(examples.features)
    with torch.inference_mode():
        before, after = start.heads(features), found.heads(features)
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])
    assert torch.equal(found.emit.weight[STEERING_ROW], start.emit.weight[STEERING_ROW])


@pytest.mark.system
def test_a_rehearsal_teaches_corrections_and_says_what_it_saw(practice: Practice) -> None:
    done: list[str] = []
    found = rehearse(practice, unguarded, SMALL, done.append)
    assert done == ["examining"] * 6 + ["learning"]
    assert len(done) == SMALL.total
    assert len(found.epochs) == 2
    assert np.isfinite(found.regret)
    assert found.features.shape[1:] == (len(CLASSES), 12, 12)
    with torch.inference_mode():
        residual, _ = found.network.heads(torch.from_numpy(found.features))
    assert residual.abs().max() > 0
    assert isinstance(found.network, ResidualLstm)

    again = rehearse(practice, unguarded, replace(SMALL, processes=2), done.append)
    for name, tensor in found.network.state_dict().items():
        assert torch.equal(again.network.state_dict()[name], tensor), name
