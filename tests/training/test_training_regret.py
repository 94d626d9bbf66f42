"""Costs of weights at visited states, and a network that learns from them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fleets import CLASSES, ENGINE, workload_of
from hypothesis import given
from hypothesis import strategies as st

from models.features import FEATURE_NAMES, encode
from models.loss import Fates, slo_loss
from models.lstm import ResidualLstm, log_shares
from models.rule import rule_shares
from training.closed_loop.controller import RuleController, StaticController, unguarded
from training.closed_loop.plant import ticks_of
from training.closed_loop.steer import steer
from training.errors import BadFile, FitDiverged
from training.regret.batches import Batch, grouped, load, save
from training.regret.candidates import candidate_log_shares, centred, normalised
from training.regret.cost import LocalCost, fit_cost
from training.regret.futures import branch_into
from training.regret.learn import LearnOptions, learn, score
from training.regret.lessons import Lesson, LessonOptions, class_weights, lessons_of
from training.regret.objective import Penalties, regret
from training.regret.worlds import World, draw_world
from training.simulator.model import Fleet
from training.simulator.policies import value_shares
from training.simulator.rollout import evaluate
from training.simulator.scenario import Scenario
from training.simulator.traffic import REFERENCE

FLEET = Fleet(ENGINE)
FEW = LessonOptions(states=3, candidates=12, futures=2, horizon_ticks=3, after_ticks=2)
NO_PENALTIES = Penalties(step=0, residual=0, trust=0, floor=0, violation=0)
seeds = st.integers(0, 2**32 - 1)


def busy() -> Scenario:
    return Scenario.steady("busy", workload_of(600, 8.0, 5))


def small_world(seed: int = 3) -> World:
    world = World("flash-crowd", REFERENCE, draw_world(0, 60.0).fleet, 1.0, 100.0, seed)
    world.__dict__["requests_per_s"] = 9.0  # spares the test a measurement of the capacity
    return world


@given(seeds, st.integers(2, 5))
def test_a_convex_quadratic_is_found_again(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(classes, classes))
    true = LocalCost(
        centre=centred(rng.normal(size=classes)),
        gradient=centred(rng.normal(size=classes)),
        curvature=centred(centred(root @ root.T).T),
    )
    tried = normalised(true.centre + 30.0 * rng.normal(size=(60, classes)))
    found = fit_cost(tried, 7.0 + true.at(tried), true.centre)
    np.testing.assert_allclose(found.at(tried), true.at(tried), rtol=0.02, atol=2.0)


@given(seeds, st.integers(2, 5))
def test_a_fitted_cost_bends_down_nowhere_and_looks_at_ratios_only(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    tried = normalised(rng.normal(size=(24, classes)))
    cost = fit_cost(tried, rng.normal(size=24), tried[0])
    assert np.linalg.eigvalsh(cost.curvature).min() >= -1e-9
    assert cost.at(tried[0]) == pytest.approx(0.0, abs=1e-9)
    np.testing.assert_allclose(cost.at(tried + 3.0), cost.at(tried), atol=1e-9)


@given(seeds, st.integers(2, 5))
def test_a_fitted_cost_knows_no_order_of_the_classes(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    tried, costs = normalised(rng.normal(size=(24, classes))), rng.normal(size=24)
    order = rng.permutation(classes)
    one = fit_cost(tried, costs, tried[0]).at(tried)
    other = fit_cost(tried[:, order], costs, tried[0][order]).at(tried[:, order])
    np.testing.assert_allclose(one, other, atol=1e-8)


@given(seeds, st.integers(1, 5), st.integers(16, 32))
def test_candidates_are_shares_around_the_policys(seed: int, classes: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    wanted, rule = normalised(rng.normal(size=(2, classes)))
    tried = candidate_log_shares(wanted, rule, count, rng)
    assert tried.shape == (count, classes)
    np.testing.assert_allclose(np.exp(tried).sum(axis=1), 1.0)
    np.testing.assert_allclose(tried[:2], [wanted, rule])
    assert np.linalg.norm(centred(tried[2:]) - centred(wanted), axis=1).max() < 1.5


def test_its_own_future_is_what_happened() -> None:
    controller = StaticController(value_shares(CLASSES))
    steered = steer(busy(), FLEET, controller, keep=(5,))
    until_s = 12 * FLEET.tick_s
    future = branch_into(busy(), steered.states[5], busy(), FLEET, until_s=until_s)
    (run,) = evaluate(FLEET, future.workload, steered.shares[None, 5:12], future.state)
    np.testing.assert_array_equal(run.series, steered.series[5:12])


def test_another_future_keeps_the_past_and_brings_other_requests() -> None:
    world = small_world()
    own, other = world.scenario(), world.scenario(future=1)
    controller = StaticController(value_shares(own.workload.classes))
    state = steer(own, world.fleet, controller, keep=(8,)).states[8]
    future = branch_into(own, state, other, world.fleet, until_s=60.0)
    arrival_s = future.workload.arrival_s
    assert set(arrival_s[arrival_s < 40.0]) <= set(own.workload.arrival_s)
    assert set(arrival_s[arrival_s >= 40.0]) <= set(other.workload.arrival_s)
    assert int(np.isnan(future.state.requests["finished_s"]).sum()) >= state.live
    assert not set(other.workload.arrival_s) & set(own.workload.arrival_s)


def test_futures_of_a_world_share_its_conditions() -> None:
    world = draw_world(4, 200.0)
    one, other = world.scenario(), world.scenario(future=3)
    assert one.step_time == other.step_time
    assert one.workload.classes == other.workload.classes


@pytest.mark.parametrize("kind", range(3))
def test_class_weights_are_the_gradient_of_the_loss(kind: int) -> None:
    scenario = busy()
    index = scenario.workload.class_index
    lost = np.zeros(len(index), dtype=np.bool_)
    lost[np.flatnonzero(index == 2)[:90]] = True  # the third class is the worst by far

    def loss_of(lost: np.ndarray) -> float:
        none = np.full(len(index), 0.0)
        return slo_loss(Fates(index, none, none, none, none, lost), CLASSES).total

    fates = Fates(index, *(np.zeros(len(index)) for _ in range(4)), lost)
    weights = class_weights(scenario, slo_loss(fates, CLASSES), near_worst=1e-3)
    more = lost.copy()
    more[np.flatnonzero((index == kind) & ~lost)[0]] = True
    expected = (loss_of(more) - loss_of(lost)) * ticks_of(scenario)
    assert weights[kind] == pytest.approx(expected)


def test_lessons_are_a_function_of_the_world_and_the_policy() -> None:
    (loss, first), (_, second) = (
        lessons_of(small_world(), RuleController(), unguarded, FEW) for _ in range(2)
    )
    assert loss.total > 0
    assert len(first) == FEW.states
    assert any(np.abs(lesson.cost.gradient).max() > 0 for lesson in first)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.features, other.features)
        np.testing.assert_array_equal(one.cost.gradient, other.cost.gradient)


def test_a_lesson_is_centred_on_what_the_policy_wants() -> None:
    wanted = np.array([4.0, 3.0, 2.0, 1.0]) / 10
    _, lessons = lessons_of(small_world(), StaticController(wanted), unguarded, FEW)
    for lesson in lessons:
        np.testing.assert_allclose(lesson.cost.centre, centred(np.log(wanted)))
        np.testing.assert_allclose(np.exp(lesson.in_force), wanted)


def made_up_lessons(count: int, classes: int = 3, seed: int = 0) -> list[Lesson]:
    """More weight is better for the class whose queue is longest, and only for it."""
    rng = np.random.default_rng(seed)
    waiting = FEATURE_NAMES.index("log1p_waiting")
    lessons = []
    for _ in range(count):
        features = rng.normal(size=(classes, 12, len(FEATURE_NAMES))).astype(np.float32)
        features[..., FEATURE_NAMES.index("rule_logit")] = -0.7
        longest = int(rng.integers(classes))
        features[..., waiting] = 0.0
        features[longest, :, waiting] = 3.0
        gradient = centred(-1.0 * np.eye(classes)[longest])
        lessons.append(
            Lesson(
                features=features,
                cost=LocalCost(np.zeros(classes), gradient, centred(np.eye(classes))),
                in_force=normalised(np.zeros(classes)),
                floor=np.zeros(classes),
                violation=np.full(classes, 0.2),
                violation_known=np.ones(classes, dtype=np.bool_),
            )
        )
    return lessons


def test_regret_is_the_local_cost() -> None:
    lessons = made_up_lessons(5)
    (batch,) = grouped(lessons)
    wanted = normalised(np.random.default_rng(1).normal(size=(5, 3)))
    found = regret(torch.from_numpy(wanted.astype(np.float32)), batch)
    expected = [lesson.cost.at(row) for lesson, row in zip(lessons, wanted, strict=True)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_the_network_learns_what_lowers_the_cost() -> None:
    torch.manual_seed(0)
    learned = learn(
        ResidualLstm(),
        grouped([*made_up_lessons(96), *made_up_lessons(32, classes=2, seed=3)]),
        grouped(made_up_lessons(24, seed=9)),
        LearnOptions(epochs=25, learning_rate=5e-3, batch_size=16),
    )
    assert learned.regret < -0.2
    (batch,) = grouped(made_up_lessons(16, seed=5))
    with torch.inference_mode():
        residual, _ = learned.network.heads(batch.features)
        wanted = log_shares(batch.features, residual)
    assert (wanted.argmax(dim=1) == (-batch.gradient).argmax(dim=1)).all()


def test_an_untrained_network_has_the_regret_of_the_rule() -> None:
    lessons = made_up_lessons(8)
    moved = [
        replace(lesson, cost=replace(lesson.cost, centre=centred(np.array([1.0, 0.0, 0.0]))))
        for lesson in lessons
    ]
    expected = np.mean([lesson.cost.at(np.zeros(3)) for lesson in moved])
    _, found = score(ResidualLstm(), grouped(moved), NO_PENALTIES)
    assert found == pytest.approx(expected, rel=1e-4)


def test_log_shares_are_those_that_serving_gives() -> None:
    world = small_world()
    window = steer(world.scenario(), world.fleet, RuleController()).windows[14]
    classes = world.scenario().workload.classes
    features = torch.from_numpy(encode(window, classes))
    found = log_shares(features, torch.zeros(len(classes))).exp()
    np.testing.assert_allclose(found.numpy(), rule_shares(window, classes), rtol=1e-4)


@pytest.mark.parametrize("empty", [0, 1])
def test_without_lessons_nothing_is_learned(empty: int) -> None:
    groups: list[Sequence[Batch]] = [grouped(made_up_lessons(4)), grouped(made_up_lessons(4))]
    groups[empty] = []
    with pytest.raises(ValueError, match="lessons"):
        learn(ResidualLstm(), groups[0], groups[1], LearnOptions())


def test_an_objective_that_is_no_number_is_refused() -> None:
    broken = made_up_lessons(4)
    broken[0].features[:] = np.nan
    with pytest.raises(FitDiverged):
        learn(ResidualLstm(), grouped(broken), grouped(broken), LearnOptions(epochs=2))


def test_lessons_survive_the_disk(tmp_path: Path) -> None:
    groups = grouped([*made_up_lessons(3), *made_up_lessons(2, classes=4)])
    save(groups, tmp_path / "lessons.npz")
    for one, other in zip(load(tmp_path / "lessons.npz"), groups, strict=True):
        for column, expected in zip(one, other, strict=True):
            assert torch.equal(column, expected)


def test_a_file_without_lessons_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lessons.npz").write_bytes(b"something else")
    with pytest.raises(BadFile):
        load(tmp_path / "lessons.npz")


@given(st.integers(0, 10_000))
def test_worlds_differ_by_seed_and_by_nothing_else(seed: int) -> None:
    one, again, other = draw_world(seed, 60.0), draw_world(seed, 60.0), draw_world(seed + 1, 60.0)
    assert one == again
    assert one != other
    assert 2 <= len(one.traffic) <= 5
