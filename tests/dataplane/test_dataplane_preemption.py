import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from preemption_examples import SETTINGS, STAYS, head, names, runs

from dataplane.config import PreemptionSettings
from dataplane.preemption import (
    RETRY_S,
    RecomputeBudget,
    Refusal,
    RunningRequest,
    Shortage,
    WaitingHead,
    WeightPreemption,
    choose_victims,
    needs_place,
)
from dataplane.weights import LatePolicy, Tier


def choose(
    waiting: WaitingHead, *running: RunningRequest, budget_tokens: float = 1e6
) -> tuple[RunningRequest, ...] | Refusal:
    return choose_victims(waiting, (STAYS, *running), SETTINGS, budget_tokens)


# Who may preempt, and when.


def test_an_urgent_head_with_all_slots_taken_and_no_end_in_sight_needs_a_place() -> None:
    assert needs_place(head(), SETTINGS)


@pytest.mark.parametrize(
    "calm",
    [
        {"lacks_slot": False},
        {"free_in_s": 0.25},
        {"age_s": 0.39},
        {"ttft_slo_s": math.inf},
        {"tier": Tier.P2},
        {"tier": Tier.REST},
        {"preemptions": 1},
    ],
    ids=["a-slot-is-free", "one-frees-in-time", "patient", "no-objective", "P2", "REST", "victim"],
)
def test_a_head_that_is_unprotected_or_can_wait_needs_none(calm: dict[str, Any]) -> None:
    assert not needs_place(head(**calm), SETTINGS)


def test_a_head_of_p1_is_protected() -> None:
    assert needs_place(head(tier=Tier.P1), SETTINGS)


def test_a_head_short_of_memory_alone_needs_a_place() -> None:
    assert needs_place(head(lacks_slot=False, lacks_blocks=1), SETTINGS)


def test_a_late_head_still_needs_its_place_unless_its_class_is_demoted() -> None:
    assert needs_place(head(age_s=5.0), SETTINGS)
    assert not needs_place(head(age_s=5.0, late=LatePolicy.DEMOTE), SETTINGS)


# Whom.


@pytest.mark.parametrize("weight", [6.0, 4.01])
def test_requests_of_equal_or_nearly_equal_weight_stay(weight: float) -> None:
    assert choose(head(), runs(weight=weight)) is Refusal.WEIGHT


def test_a_request_of_a_better_tier_stays_however_light() -> None:
    assert choose(head(tier=Tier.P1), runs(weight=0.01, tier=Tier.P0)) is Refusal.WEIGHT


def test_the_lightest_goes_then_the_worst_tier_then_the_least_work_then_the_latest() -> None:
    order = [
        runs("lightest", weight=0.5, tier=Tier.P1, computed_tokens=900),
        runs("worst-tier", tier=Tier.REST, computed_tokens=800),
        runs("least-work", computed_tokens=100),
        runs("latest", computed_tokens=300, admission=9),
        runs("earliest", computed_tokens=300, admission=2),
    ]
    while order:
        assert names(choose(head(), *order)) == [order[0].request_id]
        assert names(choose(head(), *reversed(order))) == [order.pop(0).request_id]


def test_a_request_keeps_its_place_for_a_minimum_time() -> None:
    assert choose(head(), runs(ran_s=0.99)) is Refusal.QUANTUM
    assert names(choose(head(), runs(ran_s=1.0))) == ["long-1"]


def test_a_request_is_preempted_only_so_often() -> None:
    assert choose(head(), runs(preemptions=2)) is Refusal.COUNT


def test_the_only_running_request_stays_even_for_p0() -> None:
    assert choose_victims(head(), [runs()], SETTINGS, 1e6) is Refusal.PROGRESS


def test_of_equals_the_first_admitted_stays() -> None:
    equals = [runs(f"r{n}", admission=n, computed_tokens=n) for n in range(1, 4)]
    first_only = choose_victims(head(lacks_blocks=120), equals, SETTINGS, 1e6)
    assert first_only is Refusal.MEMORY, "r1 stays, so that its 40 blocks do not come free"
    assert names(choose_victims(head(lacks_blocks=80), equals, SETTINGS, 1e6)) == ["r2", "r3"]


def test_what_would_recompute_too_much_is_passed_over_for_what_does_not() -> None:
    costly, cheap = runs("costly", weight=0.5, computed_tokens=5000), runs("cheap")
    assert names(choose(head(), costly, cheap, budget_tokens=1000)) == ["cheap"]
    assert choose(head(), costly, budget_tokens=1000) is Refusal.BUDGET


def test_memory_takes_as_many_as_needed_and_spares_the_superfluous() -> None:
    small, large = runs("small", weight=0.5, blocks=3), runs("large", blocks=40)
    assert names(choose(head(lacks_blocks=41), small, large)) == ["small", "large"]
    assert names(choose(head(lacks_blocks=40), small, large)) == ["large"]
    assert choose(head(lacks_blocks=44), small, large) is Refusal.MEMORY


RUNNING = st.lists(
    st.builds(
        RunningRequest,
        request_id=st.just("r"),
        weight=st.sampled_from([0.5, 1.0, 3.9, 4.0, 6.0, 9.0]),
        tier=st.sampled_from(Tier),
        ran_s=st.sampled_from([0.0, 0.5, 1.0, 60.0]),
        admission=st.just(0),
        computed_tokens=st.integers(0, 600),
        blocks=st.integers(0, 40),
        preemptions=st.integers(0, 3),
    ),
    max_size=7,
).map(
    lambda running: [
        replace(one, request_id=f"r{index}", admission=index) for index, one in enumerate(running)
    ]
)


@settings(deadline=None)
@given(
    running=RUNNING,
    tier=st.sampled_from([Tier.P0, Tier.P1]),
    lacks_blocks=st.integers(0, 90),
    budget_tokens=st.integers(0, 1500),
    shuffle=st.randoms(use_true_random=False),
)
def test_victims_obey_every_rule_and_none_is_superfluous(
    running: list[RunningRequest],
    tier: Tier,
    lacks_blocks: int,
    budget_tokens: int,
    shuffle: Any,
) -> None:
    waiting = head(tier=tier, lacks_blocks=lacks_blocks)
    choice = choose_victims(waiting, running, SETTINGS, budget_tokens)
    heaviest = max((one.weight for one in running), default=0.0)
    stays = next((one for one in running if one.weight == heaviest), None)
    allowed = [
        one
        for one in running
        if one != stays
        and one.weight * 1.5 <= 6.0
        and one.tier >= tier
        and one.preemptions < 2
        and one.ran_s >= 1.0
        and one.computed_tokens <= budget_tokens
    ]
    if isinstance(choice, Refusal):
        enough = allowed and sum(one.blocks for one in allowed) >= lacks_blocks
        assert not enough or choice is Refusal.BUDGET
    else:
        assert set(choice) <= set(allowed)
        assert sum(one.computed_tokens for one in choice) <= budget_tokens
        freed = sum(one.blocks for one in choice)
        assert freed >= lacks_blocks
        assert len(choice) == 1 or all(freed - one.blocks < lacks_blocks for one in choice)
    shuffled = list(running)
    shuffle.shuffle(shuffled)
    assert choose_victims(waiting, shuffled, SETTINGS, budget_tokens) == choice


# How much, and what is counted.


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.01, 30.0), st.floats(0.0, 1.0), st.floats(10.0, 5000.0)),
        min_size=2,
        max_size=30,
    )
)
def test_in_any_time_the_budget_allows_its_rate_and_one_minute_more(
    spending: list[tuple[float, float, float]],
) -> None:
    budget, now_s, spent = RecomputeBudget(), 1000.0, []
    for wait_s, share, tokens_per_min in spending:
        now_s += wait_s
        budget.refill(tokens_per_min, now_s)
        spent.append((now_s, share * budget.tokens))
        budget.spend(share * budget.tokens)
    fastest = max(rate for _, _, rate in spending)
    for first, (start_s, _) in enumerate(spent):
        for end_s, _ in spent[first:]:
            tokens = sum(amount for at_s, amount in spent if start_s <= at_s <= end_s)
            assert tokens <= fastest * (1.0 + (end_s - start_s) / 60.0) + 1e-6


def test_the_budget_follows_the_measured_rate_unless_it_is_set() -> None:
    measured = WeightPreemption(SETTINGS)
    costly = runs(computed_tokens=3001)
    ask = {"prefill_tokens_per_s": 1000.0, "now_s": 50.0}
    assert measured.victims(head(), [STAYS, costly], **ask) == ()
    fixed = WeightPreemption(PreemptionSettings(recompute_tokens_per_min=3001))
    assert fixed.victims(head(), [STAYS, costly], **ask) == (costly,)
    assert (fixed.recomputed_tokens, fixed.preempted[Shortage.SLOT]) == (3001, 1)


def test_before_the_engine_is_measured_nothing_is_recomputed() -> None:
    unmeasured = WeightPreemption(SETTINGS)
    assert not unmeasured.victims(head(), [STAYS, runs()], prefill_tokens_per_s=0.0, now_s=1.0)
    assert unmeasured.refused[Refusal.BUDGET] == 1


def test_preemptions_are_counted_by_what_was_short() -> None:
    preemption = WeightPreemption(SETTINGS)
    short = head(lacks_slot=False, lacks_blocks=60)
    running = [STAYS, runs("a"), runs("b")]
    preemption.victims(short, running, prefill_tokens_per_s=1e4, now_s=1.0)
    assert preemption.preempted == {Shortage.SLOT: 0, Shortage.MEMORY: 2}
    assert preemption.recomputed_tokens == 1000


def test_a_refused_head_waits_a_little_before_it_asks_again_and_counts_once() -> None:
    preemption, young = WeightPreemption(SETTINGS), [STAYS, runs(ran_s=0.0)]
    now_s = 10.0
    for _ in range(3):
        assert preemption.considers(head(), now_s)
        assert not preemption.victims(head(), young, prefill_tokens_per_s=1e4, now_s=now_s)
        assert not preemption.considers(head(), now_s + 0.5 * RETRY_S)
        assert preemption.considers(head(task_class="other"), now_s)
        assert preemption.considers(head(request_id="vip-2"), now_s)
        now_s += RETRY_S
    assert preemption.refused[Refusal.QUANTUM] == 1


def test_switched_off_it_considers_nobody() -> None:
    assert not WeightPreemption(PreemptionSettings(enabled=False)).considers(head(), 1.0)
