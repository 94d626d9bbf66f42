from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.demo.scenario import TRAFFIC, blocks
from benchmarks.plan import Burst, LoadShape, poisson_arrivals, simultaneous_arrivals


@given(seed=st.integers(0, 2**31), capacity=st.floats(0.5, 20))
def test_arrivals_are_ordered_within_the_plan_and_of_the_stated_lengths(
    seed: int, capacity: float
) -> None:
    shape = LoadShape(duration_s=20, steady_load=0.7, bursts=(Burst(5, 10, 1.5),))
    plan = poisson_arrivals(TRAFFIC, shape, capacity_requests_per_s=capacity, seed=seed)
    times = [arrival.at_s for arrival in plan]
    assert times == sorted(times)
    assert all(0 < at_s < 20 for at_s in times)
    for arrival in plan:
        kind = TRAFFIC[arrival.task_class]
        assert kind.prompt_tokens[0] <= arrival.prompt_tokens <= kind.prompt_tokens[1]
        assert kind.output_tokens[0] <= arrival.output_tokens <= kind.output_tokens[1]


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    shape = LoadShape(duration_s=30, steady_load=1.0)

    def draw(seed: int) -> object:
        return poisson_arrivals(TRAFFIC, shape, capacity_requests_per_s=5, seed=seed)

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_rates_follow_the_load_and_the_shares() -> None:
    shape = LoadShape(duration_s=4000, steady_load=0.5, bursts=(Burst(0, 2000, 1.5),))
    plan = poisson_arrivals(TRAFFIC, shape, capacity_requests_per_s=10, seed=3)
    in_burst = sum(arrival.at_s < 2000 for arrival in plan)
    # Poisson counts of 30,000 and 10,000: five standard deviations.
    assert in_burst == pytest.approx(30_000, abs=5 * 30_000**0.5)
    assert len(plan) - in_burst == pytest.approx(10_000, abs=5 * 10_000**0.5)
    shares = Counter(arrival.task_class for arrival in plan)
    for name, kind in TRAFFIC.items():
        assert shares[name] / len(plan) == pytest.approx(kind.share, abs=0.02)


def test_a_saturating_plan_arrives_at_once_with_the_same_work_whatever_the_seed() -> None:
    plans = [simultaneous_arrivals(TRAFFIC, 100, seed=seed) for seed in range(5)]
    assert {arrival.at_s for plan in plans for arrival in plan} == {0.0}
    counts = Counter(arrival.task_class for arrival in plans[0])
    assert counts == {name: round(100 * kind.share) for name, kind in TRAFFIC.items()}
    assert len({frozenset(Counter(plan).items()) for plan in plans}) == 1
    assert len(set(plans)) == 5, "the order is random"


def test_both_policies_of_a_pair_see_the_same_arrivals_in_abba_order() -> None:
    plan = blocks(120, capacity_requests_per_s=5, seed=7)
    assert [block.policy for block in plan] == ["fcfs", "learned", "learned", "fcfs"]
    assert plan[0].plan == plan[1].plan
    assert plan[2].plan == plan[3].plan
    assert plan[0].plan != plan[2].plan
