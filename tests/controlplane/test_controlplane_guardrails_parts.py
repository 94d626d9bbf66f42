"""Each guardrail by itself, against a slow obvious version where there is one."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.guardrails.budget import Ledger
from controlplane.guardrails.cost import Load, estimated_cost, load_of, wait_ratios
from controlplane.guardrails.hysteresis import settle
from controlplane.guardrails.mutation import mutated
from controlplane.guardrails.trust import blended, trust_in
from models.classes import Slo, TaskClass
from models.window import STEP_S, STEPS, Signal, Window

VIP = TaskClass("vip", Slo(1.0), value=8.0)
BATCH = TaskClass("batch", Slo(30.0), value=1.0)
SHARES = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8).map(
    lambda parts: np.array(parts) / sum(parts)
)


def _window(**signals: object) -> Window:
    """Two classes; signals that are not given are 0."""
    shape = (2, STEPS)
    filled = {signal: np.zeros(shape) for signal in Signal}
    for name, values in signals.items():
        filled[Signal(name)] = np.array(np.broadcast_to(np.asarray(values, dtype=float), shape))
    return Window(1_000.0, STEP_S, ("vip", "batch"), filled)


# Trust in the model.


def test_trust_falls_in_a_straight_line_and_the_strangest_class_decides() -> None:
    for strangest, trust in ((0.0, 1.0), (0.25, 1.0), (0.625, 0.5), (1.0, 0.0), (9.0, 0.0)):
        assert trust_in(np.array([0.0, strangest]), within=0.25, beyond=1.0) == trust


@given(SHARES, st.data())
def test_blend_lies_between_the_model_and_the_rule_in_log_shares(
    rule: np.ndarray, data: st.DataObject
) -> None:
    wanted = rule[::-1].copy()
    trust = data.draw(st.floats(0.0, 1.0))
    mixed = blended(wanted, rule, trust)
    ratio = np.log(mixed / mixed[0])
    ends = np.log(rule / rule[0]), np.log(wanted / wanted[0])
    assert (ratio >= np.minimum(*ends) - 1e-9).all()
    assert (ratio <= np.maximum(*ends) + 1e-9).all()


@pytest.mark.parametrize("trust", [0.0, 0.3, 1.0])
def test_blend_never_makes_an_unusable_weight_usable(trust: float) -> None:
    wanted = np.array([math.nan, 0.0, -1.0, math.inf, 2.0])
    mixed = blended(wanted, np.full(5, 0.2), trust)
    usable = np.isfinite(mixed) & (mixed > 0)
    assert usable.tolist() == [False, False, False, False, True]


# Jumps of traffic.


def test_traffic_that_triples_is_a_jump_and_its_return_is_one_too() -> None:
    steady, tripled = [10.0] * 10, [30.0] * 2
    window = _window(arrivals_per_s=[steady + tripled, [10.0] * 12])
    assert mutated(window, score=6.0).tolist() == [True, False]
    back = _window(arrivals_per_s=[[30.0] * 10 + [10.0] * 2, [10.0] * 12])
    assert mutated(back, score=6.0).tolist() == [True, False]


def test_a_new_class_is_a_jump_once_its_requests_are_many() -> None:
    window = _window(arrivals_per_s=[[0.0] * 10 + [20.0] * 2, [0.0] * 10 + [0.2] * 2])
    assert mutated(window, score=6.0).tolist() == [True, False]


def test_unknown_arrivals_are_no_jump() -> None:
    window = _window(arrivals_per_s=[[10.0] * 10 + [math.nan] * 2, [math.nan] * 12])
    assert not mutated(window, score=6.0).any()


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 200.0))
def test_poisson_arrivals_at_a_steady_rate_are_no_jump(seed: int, rate_per_s: float) -> None:
    counts = np.random.default_rng(seed).poisson(rate_per_s * STEP_S, (2, STEPS))
    assert not mutated(_window(arrivals_per_s=counts / STEP_S), score=6.0).any()


# Hysteresis.


def test_a_move_begins_above_start_and_ends_below_stop() -> None:
    shares = np.array([0.5, 0.5])

    def step(log_share: float, *, moving: bool) -> tuple[bool, bool]:
        other = np.array([0.5 * math.exp(log_share), 1 - 0.5 * math.exp(log_share)])
        settled, goes_on = settle(other, previous=shares, moving=moving, start=0.02, stop=0.005)
        return bool((settled == other).all()), goes_on

    assert step(0.015, moving=False) == (False, False)
    assert step(0.015, moving=True) == (True, True)
    assert step(0.05, moving=False) == (True, True)
    assert step(0.004, moving=True) == (True, False)


@given(target=SHARES, seed=st.integers(0, 2**32 - 1), moving=st.booleans())
def test_what_is_published_is_never_further_off_than_start(
    target: np.ndarray, seed: int, *, moving: bool
) -> None:
    noise = np.exp(np.random.default_rng(seed).normal(0, 0.02, target.shape))
    previous = target * noise / (target * noise).sum()
    settled, _ = settle(target, previous=previous, moving=moving, start=0.02, stop=0.005)
    assert np.abs(np.log(settled / target)).max() <= 0.02 + 1e-12


# The estimated cost.


@given(SHARES, st.data())
def test_waits_obey_the_conservation_law_whatever_the_slopes(
    demand: np.ndarray, data: st.DataObject
) -> None:
    slope = st.floats(1e-6, 1e6)
    slopes = np.array(data.draw(st.lists(slope, min_size=len(demand), max_size=len(demand))))
    load = demand * data.draw(st.floats(0.05, 0.95))
    waits = wait_ratios(slopes, load)
    assert (waits > 0).all()
    assert (load * waits).sum() == pytest.approx(load.sum(), rel=1e-6)
    order = np.argsort(slopes)
    assert (np.diff(waits[order]) <= 1e-6).all(), "a steeper class never waits longer"


def test_waits_of_two_classes_are_those_of_the_formula() -> None:
    # rho = 0.4 each; slopes 1 and 4. In units of W0 / (1 - rho):
    # W_1 = 1 / (1 - 0.4 (1 - 1/4)) and W_2 = 1 - 0.4 W_1 (1 - 1/4).
    slow = 1 / (1 - 0.4 * 0.75)
    waits = wait_ratios(np.array([1.0, 4.0]), np.array([0.4, 0.4]))
    assert waits == pytest.approx([slow, 1 - 0.4 * slow * 0.75])


@given(SHARES)
def test_equal_slopes_share_the_wait_equally(demand: np.ndarray) -> None:
    assert wait_ratios(np.full(len(demand), 3.0), 0.9 * demand) == pytest.approx(1.0)


def test_expected_loss_is_that_of_exponential_waits() -> None:
    load = Load(np.array([2.0]), np.array([1.0]), np.array([0.5]), mean_wait_s=1.5)
    waits_s = np.random.default_rng(0).exponential(1.5, 400_000)
    late = waits_s > 2.0
    lost = 0.5 * late + 0.5 * np.clip((waits_s - 2.0) / 18.0, 0.0, 1.0)
    assert estimated_cost(np.array([1.0]), load) == pytest.approx(lost.mean(), abs=2e-3)


@given(st.floats(1e-9, 1.0), st.floats(0, 1e15), st.floats(0.05, 0.95))
def test_cost_is_a_part_of_what_arrives(first: float, wait_s: float, load: float) -> None:
    shares = np.array([first, max(1.0 - first, 1e-9)])
    cost = estimated_cost(
        shares, Load(np.array([0.1, 100.0]), np.full(2, 0.5), np.full(2, load / 2), wait_s)
    )
    assert 0.0 <= cost <= 1.0 + 1e-12


def test_under_load_starving_the_valuable_class_is_estimated_to_cost_more() -> None:
    busy = _window(
        arrivals_per_s=[[2.0], [2.0]],
        finished_per_s=[[2.0], [2.0]],
        prompt_tokens_per_s=[[200.0], [200.0]],
        generation_tokens_per_s=[[100.0], [100.0]],
        ttft_mean_s=[[0.5], [5.0]],
        waiting=5.0,
    )
    load = load_of(busy, (VIP, BATCH))
    good, bad = np.array([0.8, 0.2]), np.array([0.002, 0.998])
    assert estimated_cost(bad, load) > 1.05 * estimated_cost(good, load) > 0


def test_an_idle_or_unknown_window_costs_nothing() -> None:
    for value in (0.0, math.nan):
        window = _window(**{signal.value: value for signal in Signal})
        assert estimated_cost(np.array([0.5, 0.5]), load_of(window, (VIP, BATCH))) == 0.0


# The budget.


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=200),
    st.floats(1.0, 1.2),
    st.floats(0.0, 2.0),
    st.floats(0.5, 1.0),
)
def test_whoever_asks_the_ledger_first_never_breaks_the_promise(
    costs: list[tuple[float, float]], ratio: float, allowance: float, keep: float
) -> None:
    ledger = Ledger()
    for model, rule in costs:
        affordable = ledger.affords(model, rule, ratio=ratio, allowance=allowance)
        ledger = ledger.charged(model if affordable else rule, rule, keep=keep)
        assert ledger.played <= ratio * ledger.rule + allowance + 1e-9


def test_a_dear_model_is_stopped_and_comes_back_when_the_rule_has_earned_it() -> None:
    ledger, played = Ledger(), []
    for _ in range(400):
        affordable = ledger.affords(0.3, 0.2, ratio=1.05, allowance=0.0)
        played.append(affordable)
        ledger = ledger.charged(0.3 if affordable else 0.2, 0.2, keep=1.0)
    assert not played[0]
    # A tick earns 0.05 * 0.2, a play costs 0.1 more than the rule: one tick in ten.
    assert sum(played) in {39, 40}
