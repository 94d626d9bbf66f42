from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.classes import Slo, TaskClass
from training.simulator.course import Course
from training.simulator.lengths import (
    Independent,
    Lengths,
    Lognormal,
    Observed,
    Uniform,
    whole_tokens,
)
from training.simulator.regimes import REGIMES, RETRIES, draw_scenario
from training.simulator.scenario import Scenario
from training.simulator.traffic import REFERENCE, arrivals_s, shares, simultaneous
from training.simulator.workload import Workload

A, B = TaskClass("a", Slo(ttft_s=1.0)), TaskClass("b", Slo(ttft_s=2.0))


def workload(**changes: object) -> Workload:
    columns: dict[str, object] = {
        "arrival_s": [0.0, 1.0, 1.0],
        "class_index": [0, 1, 0],
        "prompt_tokens": [5, 6, 7],
        "output_tokens": [1, 2, 3],
    }
    arrays = {name: np.array(value) for name, value in (columns | changes).items()}
    return Workload(**arrays, classes=(A, B))


def counted(scenario: Scenario, start_s: float, stop_s: float) -> np.ndarray:
    part = scenario.workload.between(start_s, stop_s)
    return np.bincount(part.class_index, minlength=len(part.classes))


def draw(name: str, *, seed: int = 1, duration_s: float = 4000.0, per_s: float = 20.0) -> Scenario:
    return draw_scenario(name, REFERENCE, requests_per_s=per_s, duration_s=duration_s, seed=seed)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"arrival_s": [0.0, 2.0, 1.0]}, "ascending"),
        ({"arrival_s": [-1.0, 0.0, 1.0]}, "ascending"),
        ({"arrival_s": [0.0, 1.0, np.nan]}, "finite"),
        ({"arrival_s": [0.0, 1.0, np.inf]}, "finite"),
        ({"class_index": [0, 2, 0]}, "class_index"),
        ({"class_index": [0, -1, 0]}, "class_index"),
        ({"prompt_tokens": [5, 0, 7]}, "prompt_tokens"),
        ({"output_tokens": [1, 2]}, "must be"),
    ],
)
def test_a_workload_that_no_engine_could_be_asked_is_refused(
    changes: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        workload(**changes)


def test_a_stretch_of_a_workload_begins_at_zero_and_ends_before_its_stop() -> None:
    part = workload(arrival_s=[0.0, 1.0, 3.0]).between(1.0, 3.0)
    assert part.arrival_s.tolist() == [0.0]
    assert part.prompt_tokens.tolist() == [6]
    assert workload().total_tokens == 24


@pytest.mark.parametrize(
    ("lengths", "deviation"),
    [
        (Lognormal(200.0, 1.0), 200.0),
        (Lognormal(50.0, 0.0), 0.0),
        (Lognormal.from_moments(100.0, 100.0**2 + 40.0**2), 40.0),
        (Uniform(10, 30), (21**2 - 1) ** 0.5 / 12**0.5),
    ],
)
def test_lengths_have_the_stated_moments(lengths: Lengths, deviation: float) -> None:
    tokens = whole_tokens(lengths.draw(np.random.default_rng(5), 200_000))
    assert tokens.mean() == pytest.approx(lengths.mean_tokens, rel=0.01)
    assert tokens.std() == pytest.approx(deviation, rel=0.03, abs=0.1)


@given(mean=st.floats(0.1, 5000), cv=st.floats(0, 3), most=st.integers(1, 4096))
def test_lengths_are_whole_and_within_their_bounds(mean: float, cv: float, most: int) -> None:
    tokens = whole_tokens(Lognormal(mean, cv, most).draw(np.random.default_rng(0), 100))
    assert tokens.dtype == np.int32
    assert tokens.min() >= 1
    assert tokens.max() <= most


def test_observed_prompts_keep_their_answers() -> None:
    pairs = Observed(np.array([1, 10, 100], np.int32), np.array([2, 20, 200], np.int32))
    prompts, outputs = pairs.draw(np.random.default_rng(1), 3000)
    assert (outputs == 2 * prompts).all()
    assert [(prompts == value).mean() for value in (1, 10, 100)] == pytest.approx(
        [1 / 3] * 3, abs=0.04
    )


@pytest.mark.parametrize(
    "build",
    [
        lambda: Uniform(0, 3),
        lambda: Uniform(5, 4),
        lambda: Lognormal(0.0, 1.0),
        lambda: Lognormal(float("nan"), 1.0),
        lambda: Lognormal(5.0, -0.1),
        lambda: Observed(np.array([], np.int32), np.array([], np.int32)),
        lambda: Course((), ()),
        lambda: Course((1.0, 0.0), (1.0, 1.0)),
        lambda: Course((0.0,), (-1.0,)),
    ],
)
def test_what_is_no_distribution_or_course_is_refused(build: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"lengths|tokens|cv|pairs|course|times"):
        build()


def test_arrivals_follow_the_course_of_their_rate() -> None:
    course = Course.pulse(1000, 2000, 4.0, rise_s=0, fall_s=0)
    at_s = arrivals_s(5.0, course, 4000.0, np.random.default_rng(2))
    assert (np.diff(at_s) >= 0).all()
    counts = np.histogram(at_s, [0, 1000, 2000, 4000])[0]
    expected = np.array([5000, 20_000, 10_000])
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_gaps_between_arrivals_are_exponential() -> None:
    gaps_s = np.diff(arrivals_s(10.0, Course.flat(), 5000.0, np.random.default_rng(3)))
    assert gaps_s.mean() == pytest.approx(0.1, rel=0.03)
    assert gaps_s.std() == pytest.approx(gaps_s.mean(), rel=0.03)


def test_levels_of_a_course_join_what_is_equal() -> None:
    levels = Course.change(10.0, 0.0, 1.0, 2.0).levels(30.0, 1.0)
    assert levels == [(10.0, 1.0), (30.0, 2.0)]
    ramp = Course.change(0.0, 4.0, 0.0, 4.0).levels(4.5, 1.0)
    assert ramp == [(1.0, 0.5), (2.0, 1.5), (3.0, 2.5), (4.0, 3.5), (4.5, 4.0)]


@pytest.mark.parametrize("name", REGIMES)
def test_a_regime_is_the_same_for_the_same_seed_and_another_for_another(name: str) -> None:
    first, again, other = (draw(name, seed=seed, duration_s=200) for seed in (1, 1, 2))
    assert np.array_equal(first.workload.arrival_s, again.workload.arrival_s)
    assert np.array_equal(first.workload.output_tokens, again.workload.output_tokens)
    assert np.array_equal(first.fails, again.fails)
    assert not np.array_equal(first.workload.arrival_s, other.workload.arrival_s)
    assert first.name == name


def test_a_stationary_regime_has_the_shares_rates_and_lengths_of_its_traffic() -> None:
    scenario = draw("stationary")
    counts = counted(scenario, 0, 4000)
    expected = 20 * 4000 * shares(REFERENCE)
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()
    assert not scenario.fails.any()
    for index, kind in enumerate(REFERENCE):
        own = scenario.workload.class_index == index
        prompt_tokens, output_tokens = kind.lengths.mean_tokens
        assert scenario.workload.prompt_tokens[own].mean() == pytest.approx(prompt_tokens, rel=0.05)
        assert scenario.workload.output_tokens[own].mean() == pytest.approx(output_tokens, rel=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_a_mix_shift_exchanges_the_shares_and_keeps_the_work(seed: int) -> None:
    scenario = draw("mix-shift", seed=seed)
    before, after = counted(scenario, 0, 1000), counted(scenario, 3000, 4000)
    assert before / before.sum() == pytest.approx(shares(REFERENCE), abs=0.02)
    assert sorted(after / after.sum()) == pytest.approx(sorted(shares(REFERENCE)), abs=0.02)
    assert np.abs(after / after.sum() - shares(REFERENCE)).max() > 0.04
    work = np.array([kind.work_tokens for kind in REFERENCE])
    assert after @ work == pytest.approx(before @ work, rel=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_a_flash_crowd_is_of_one_class_and_passes(seed: int) -> None:
    scenario = draw("flash-crowd", seed=seed)
    slices = np.array([counted(scenario, at_s, at_s + 100) for at_s in range(0, 4000, 100)])
    usual = 100 * 20 * shares(REFERENCE)
    ratios = slices.max(axis=0) / usual
    assert (ratios > 1.6).sum() == 1
    work = np.array([kind.work_tokens for kind in REFERENCE])
    assert 1.3 < (slices @ work).max() / (usual @ work) < 2.2
    assert slices[:7] / usual == pytest.approx(np.ones((7, 4)), abs=0.35)
    assert slices[-7:] / usual == pytest.approx(np.ones((7, 4)), abs=0.35)


def test_a_day_has_a_peak_and_a_trough_and_the_same_requests_in_all() -> None:
    scenario = draw("diurnal")
    slices = np.histogram(scenario.workload.arrival_s, np.linspace(0, 4000, 21))[0]
    assert slices.max() / slices.min() > 2
    assert len(scenario.workload) == pytest.approx(80_000, rel=0.03)


def test_service_drift_is_handed_over_as_levels_of_the_step_time() -> None:
    scenario = draw("service-drift")
    levels = scenario.step_time.levels(scenario.duration_s, 10.0)
    factors = [factor for _, factor in levels]
    assert factors[0] == 1.0
    assert factors == sorted(factors)
    assert 1.2 <= factors[-1] <= 1.8
    assert levels[-1][0] == scenario.duration_s
    assert max(np.diff(factors)) < 0.02


def test_length_drift_makes_one_class_longer() -> None:
    load = draw("length-drift").workload
    early, late = load.between(0, 800), load.between(3200, 4000)
    growth = [
        late.prompt_tokens[late.class_index == index].mean()
        / early.prompt_tokens[early.class_index == index].mean()
        for index in range(len(REFERENCE))
    ]
    assert sum(ratio > 1.4 for ratio in growth) == 1
    assert sorted(growth)[:-1] == pytest.approx([1] * 3, abs=0.1)


def test_errors_come_in_a_burst_and_clients_ask_again() -> None:
    quiet, burst = draw("stationary"), draw("error-burst")
    failing = burst.workload.arrival_s[burst.fails]
    assert failing.max() - failing.min() < 0.25 * 4000
    assert (burst.workload.output_tokens[burst.fails] == 1).all()
    assert 0 < burst.fails.mean() < 0.3
    added = len(burst.workload) - len(quiet.workload)
    assert added > 0.3 * burst.fails.sum()
    assert added <= burst.fails.sum()
    asked = np.histogram(burst.workload.arrival_s, np.arange(0, 4001, 50))[0]
    assert 1.2 < asked.max() / 1000 < 1 + RETRIES


def test_a_new_class_is_not_seen_before_it_appears() -> None:
    scenario = draw("new-class")
    early, late = counted(scenario, 0, 1200), counted(scenario, 2000, 4000)
    assert (early == 0).sum() == 1
    assert (late > 0).all()


def test_a_class_gets_the_same_requests_whatever_happens_to_the_others() -> None:
    quiet, crowd = draw("stationary", duration_s=500), draw("flash-crowd", duration_s=500)
    same = [
        np.array_equal(
            quiet.workload.arrival_s[quiet.workload.class_index == index],
            crowd.workload.arrival_s[crowd.workload.class_index == index],
        )
        for index in range(len(REFERENCE))
    ]
    assert sum(same) == len(REFERENCE) - 1


def test_a_saturating_workload_has_exact_shares_and_all_at_once() -> None:
    load = simultaneous(REFERENCE, 200, seed=4)
    assert (load.arrival_s == 0).all()
    assert np.bincount(load.class_index).tolist() == [50, 80, 30, 40]


def test_lengths_of_a_request_may_be_independent() -> None:
    lengths = Independent(Uniform(1, 9), Uniform(10, 30))
    prompts, outputs = lengths.draw(np.random.default_rng(1), 20_000)
    assert lengths.mean_tokens == (5.0, 20.0)
    assert abs(np.corrcoef(prompts, outputs)[0, 1]) < 0.03
