import math
from dataclasses import astuple
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dataplane.step_time import RIDGE_RATIO, SHORTEST_RATIO, StepTimeModel, StepTimeStats

Step = tuple[int, int, int]

TRUTH = StepTimeModel(0.01, 1e-4, 5e-4, 2e-8)

coefficients = st.one_of(st.just(0.0), st.floats(1e-9, 1e-2))
models = st.builds(
    StepTimeModel,
    st.floats(1e-3, 0.1),
    st.floats(1e-6, 1e-3),
    st.floats(1e-6, 1e-3),
    st.floats(1e-9, 1e-6),
)
steps = st.tuples(st.integers(0, 2048), st.integers(0, 256), st.integers(0, 500_000))
busy_steps = steps.filter(lambda step: step[0] + step[1] > 0)


def mixed_load(seed: int, count: int = 400) -> list[Step]:
    """Decode-only and mixed steps, as a server has them."""
    random = np.random.default_rng(seed)
    decoding = random.integers(1, 65, count)
    prefill = np.where(random.random(count) < 0.5, 0, random.integers(1, 2049, count))
    context = random.integers(100, 4000, count)
    return [
        (int(p), int(d), int(d * c)) for p, d, c in zip(prefill, decoding, context, strict=True)
    ]


def stats_of(
    load: list[Step], truth: StepTimeModel, noise: np.ndarray | None = None, half_life: int = 1000
) -> StepTimeStats:
    factors = np.ones(len(load)) if noise is None else noise
    stats = StepTimeStats(half_life)
    for step, factor in zip(load, factors.tolist(), strict=True):
        stats.add(*step, truth.time_s(*step) * factor)
    return stats


def fitted(stats: StepTimeStats) -> StepTimeModel:
    model = stats.fit()
    assert model is not None
    return model


def worst_error(model: StepTimeModel, truth: StepTimeModel, load: list[Step]) -> float:
    return max(abs(model.time_s(*step) / truth.time_s(*step) - 1) for step in load)


@given(truth=models, seed=st.integers(0, 1000))
def test_noiseless_steps_give_back_the_truth(truth: StepTimeModel, seed: int) -> None:
    load = mixed_load(seed)
    model = fitted(stats_of(load, truth))
    assert worst_error(model, truth, load) < 0.01


def test_noiseless_steps_give_back_each_coefficient() -> None:
    model = fitted(stats_of(mixed_load(1), TRUTH))
    assert astuple(model) == pytest.approx(astuple(TRUTH), rel=0.01)


@given(truth=models, seed=st.integers(0, 1000))
def test_noisy_steps_give_the_truth_within_the_noise(truth: StepTimeModel, seed: int) -> None:
    """The worst of 2,000 loads: noise of 10% that a relative error weighs makes the fit
    ``exp(-2 * 0.1^2)`` = 2% too fast everywhere, and the rest is chance at the rarest loads.
    """
    noise = np.random.default_rng(seed).lognormal(0.0, 0.1, 2000)
    load = mixed_load(seed, 2000)
    model = fitted(stats_of(load, truth, noise))
    assert worst_error(model, truth, load) < 0.15


@given(
    load=st.lists(st.tuples(busy_steps, st.floats(1e-4, 100.0)), min_size=30, max_size=80),
)
def test_coefficients_are_never_negative(load: list[tuple[Step, float]]) -> None:
    stats = StepTimeStats()
    for step, elapsed_s in load:
        stats.add(*step, elapsed_s)
    assert min(astuple(fitted(stats))) >= 0


@given(rows=st.lists(st.lists(st.floats(-3, 3), min_size=4, max_size=4), min_size=1, max_size=12))
def test_a_fit_is_where_no_coefficient_can_improve_it(rows: list[list[float]]) -> None:
    """The Karush-Kuhn-Tucker conditions, which only the one solution of the problem meets."""
    z = np.exp(np.array(rows))  # [N, 4]
    gram, moment = z.T @ z, z.sum(axis=0)
    theta = np.array(astuple(StepTimeModel.fitted(gram, moment)))
    scale = np.sqrt(np.diag(gram))
    slope = (moment - gram @ theta) / scale - RIDGE_RATIO * scale * theta
    tolerance = 1e-6 * math.sqrt(len(rows))
    assert slope.max() < tolerance
    assert np.abs(slope[theta > 0]).max(initial=0.0) < tolerance


@given(rows=st.lists(st.lists(st.floats(-3, 3), min_size=4, max_size=4), min_size=1, max_size=12))
def test_a_fit_is_that_of_slow_coordinate_descent(rows: list[list[float]]) -> None:
    z = np.exp(np.array(rows))
    gram, moment = z.T @ z, z.sum(axis=0)
    scale = np.sqrt(np.diag(gram))
    curvature = gram / np.outer(scale, scale) + RIDGE_RATIO * np.eye(4)
    slow = np.zeros(4)
    for _ in range(200):
        for i in range(4):
            rest = curvature[i] @ slow - curvature[i, i] * slow[i]
            slow[i] = max(0.0, (moment[i] / scale[i] - rest) / curvature[i, i])
    fast = np.array(astuple(StepTimeModel.fitted(gram, moment)))

    def loss(theta: np.ndarray) -> float:
        return float(((1 - z @ theta) ** 2).sum())

    ridge = RIDGE_RATIO * float(((fast * scale) ** 2).sum())
    assert loss(fast) <= loss(slow / scale) + ridge + 1e-9


@given(truth=models, factor=st.floats(0.1, 1000.0), seed=st.integers(0, 1000))
def test_slower_hardware_scales_every_coefficient(
    truth: StepTimeModel, factor: float, seed: int
) -> None:
    load = mixed_load(seed, 60)
    scaled = StepTimeModel(*(factor * coefficient for coefficient in astuple(truth)))
    assume(min(scaled.time_s(*step) for step in load) >= 1e-3)
    once = np.array(astuple(fitted(stats_of(load, truth))))
    assert astuple(fitted(stats_of(load, scaled))) == pytest.approx(once * factor, rel=1e-6)


@given(step=busy_steps, elapsed_s=st.floats(1e-3, 10.0))
def test_steps_all_alike_are_predicted_at_their_own_load(step: Step, elapsed_s: float) -> None:
    stats = StepTimeStats()
    for _ in range(50):
        stats.add(*step, elapsed_s)
    assert fitted(stats).time_s(*step) == pytest.approx(elapsed_s, rel=1e-4)


def test_the_cost_of_prompts_is_remembered_over_long_decoding() -> None:
    stats = stats_of(mixed_load(1), TRUTH, half_life=20)
    decoding = [(0, 8, 8000)] * 2000
    for step in decoding:
        stats.add(*step, TRUTH.time_s(*step))
    model = fitted(stats)
    assert model.time_s(0, 8, 8000) == pytest.approx(TRUTH.time_s(0, 8, 8000), rel=0.01)
    assert model.prefill_s_per_token == pytest.approx(TRUTH.prefill_s_per_token, rel=0.5)


def test_what_was_forgotten_altogether_leaves_a_usable_model() -> None:
    stats = stats_of(mixed_load(1), TRUTH, half_life=1)
    for _ in range(5000):
        stats.add(0, 8, 8000, TRUTH.time_s(0, 8, 8000))
    assert fitted(stats).time_s(0, 8, 8000) == pytest.approx(TRUTH.time_s(0, 8, 8000), rel=0.01)


def test_there_is_no_model_of_a_few_steps() -> None:
    assert stats_of(mixed_load(1, 29), TRUTH).fit() is None
    assert stats_of(mixed_load(1, 30), TRUTH).fit() is not None


@pytest.mark.parametrize("elapsed_s", [0.0, -1.0, 1e-9, math.nan, math.inf, -math.inf])
def test_an_impossible_time_is_ignored(elapsed_s: float) -> None:
    stats = stats_of(mixed_load(1), TRUTH)
    before = stats.sums()
    stats.add(100, 5, 1000, elapsed_s)
    assert stats.sums() == before


def test_a_step_that_did_nothing_is_ignored() -> None:
    stats = StepTimeStats()
    stats.add(0, 0, 0, 0.01)
    assert stats.sums() is None


@pytest.mark.parametrize("factor", [1e-2, 1e-1, 10.0, 1e3, 1e6])
def test_one_stray_step_in_a_hundred_hardly_moves_the_model(factor: float) -> None:
    load = mixed_load(1, 3000)
    stats = stats_of(load[:1000], TRUTH)
    stats.fit()
    for index, step in enumerate(load[1000:]):
        stray = factor if index % 100 == 0 else 1.0
        stats.add(*step, TRUTH.time_s(*step) * stray)
    assert worst_error(fitted(stats), TRUTH, load) < 0.1


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_an_engine_that_changed_its_speed_is_followed(factor: float) -> None:
    load = mixed_load(1, 2000)
    stats = stats_of(load[:500], TRUTH, half_life=50)
    stats.fit()
    for index, (p, d, k) in enumerate(load):
        stats.add(p, d, k, factor * TRUTH.time_s(p, d, k))
        if index % 50 == 0:
            stats.fit()
    changed = StepTimeModel(*(factor * coefficient for coefficient in astuple(TRUTH)))
    assert worst_error(fitted(stats), changed, load) < 0.02


@given(load=st.lists(busy_steps, min_size=1, max_size=600), cuts=st.sets(st.integers(0, 600)))
def test_sums_are_those_over_the_steps_whenever_they_are_read(
    load: list[Step], cuts: set[int]
) -> None:
    stats = StepTimeStats()
    for index, step in enumerate(load):
        stats.add(*step, TRUTH.time_s(*step))
        if index in cuts:
            stats.sums()
    sums = stats.sums()
    assert sums is not None
    times_s = np.array([TRUTH.time_s(*step) for step in load])
    x = np.array([(1, *step) for step in load]) / times_s[:, None]
    assert sums.steps == len(load)
    assert sums.elapsed_s == pytest.approx(times_s.sum())
    assert sums.gram == pytest.approx((x.T @ x)[np.triu_indices(4)], rel=1e-9)
    assert sums.moment == pytest.approx(x.sum(axis=0), rel=1e-9)


def test_differences_of_sums_are_sums_over_the_steps_between() -> None:
    load = mixed_load(3, 900)
    whole, readings = StepTimeStats(), []
    for index, step in enumerate(load):
        if index % 300 == 0:
            readings.append(whole.sums())
        whole.add(*step, TRUTH.time_s(*step))
    readings.append(whole.sums())
    for part, (earlier, later) in enumerate(pairwise(readings[1:]), start=1):
        between = stats_of(load[300 * part : 300 * (part + 1)], TRUTH).sums()
        assert earlier is not None
        assert later is not None
        assert between is not None
        assert later.steps - earlier.steps == between.steps
        difference = np.array(later.gram) - np.array(earlier.gram)
        assert difference == pytest.approx(np.array(between.gram), rel=1e-9)


def test_the_model_does_not_depend_on_how_often_it_is_asked_for_the_sums() -> None:
    load = mixed_load(5, 700)
    often, once = StepTimeStats(100), StepTimeStats(100)
    for step in load:
        once.add(*step, TRUTH.time_s(*step))
        often.add(*step, TRUTH.time_s(*step))
        often.sums()
    assert astuple(fitted(often)) == pytest.approx(astuple(fitted(once)), rel=1e-6)


def test_a_step_that_seems_too_short_counts_as_a_part_of_its_prediction() -> None:
    stats = stats_of(mixed_load(1), TRUTH)
    predicted_s = fitted(stats).time_s(0, 10, 1000)
    before = stats.sums()
    stats.add(0, 10, 1000, predicted_s / 100)
    after = stats.sums()
    assert before is not None
    assert after is not None
    shortest_s = SHORTEST_RATIO * predicted_s
    assert after.moment[0] - before.moment[0] == pytest.approx(1 / shortest_s, rel=1e-6)


@given(
    model=models,
    time_s=st.floats(0.0, 1.0),
    decoding=st.integers(0, 256),
    kv_tokens=st.integers(0, 500_000),
    most=st.integers(0, 16_384),
)
def test_the_most_tokens_within_a_time_fit_and_one_more_does_not(
    model: StepTimeModel, time_s: float, decoding: int, kv_tokens: int, most: int
) -> None:
    tokens = model.prefill_tokens_within(time_s, decoding, kv_tokens, most)
    assert 0 <= tokens <= most
    if tokens:
        assert model.time_s(tokens, decoding, kv_tokens) <= time_s * (1 + 1e-9)
    if tokens < most:
        assert model.time_s(tokens + 1, decoding, kv_tokens) >= time_s * (1 - 1e-9)


def test_free_prompts_are_bounded_only_by_the_most() -> None:
    assert StepTimeModel(0.01, 0.0, 0.0, 0.0).prefill_tokens_within(0.02, 1, 1, 777) == 777


@pytest.mark.parametrize("coefficient", [-1e-9, math.nan, math.inf])
def test_a_model_with_an_impossible_coefficient_is_refused(coefficient: float) -> None:
    with pytest.raises(ValueError, match="non-negative"):
        StepTimeModel(0.01, coefficient, 0.0, 0.0)
