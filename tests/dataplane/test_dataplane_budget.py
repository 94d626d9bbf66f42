import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_engine import Request, StepEngine, a_request, poisson

from dataplane.budget import (
    LEAST_CHUNK_TOKENS,
    Demand,
    Pace,
    PrefillCap,
    RunningPrefill,
    WaitingPrompts,
    plan_prefill,
    share_by_weight,
)
from dataplane.step_time import StepTimeModel

GPU = StepTimeModel(0.008, 3e-5, 5e-5, 1e-8)

demands = st.builds(Demand, st.floats(1e-6, 1e6), st.integers(0, 300))
models = st.builds(
    StepTimeModel,
    st.floats(3e-3, 0.03),
    st.floats(3e-5, 5e-4),
    st.floats(0.0, 5e-4),
    st.floats(0.0, 1e-7),
)


def share_slowly(demands: list[Demand], budget_tokens: int) -> list[int]:
    """One token after the other to the neediest."""
    shares = [0] * len(demands)
    for _ in range(budget_tokens):
        hungry = [
            (shares[index] / weight, -weight, -tokens, index)
            for index, (weight, tokens) in enumerate(demands)
            if shares[index] < tokens
        ]
        if not hungry:
            break
        shares[min(hungry)[-1]] += 1
    return shares


@given(st.lists(demands, max_size=8), st.integers(0, 600))
def test_shares_are_those_of_giving_one_token_after_the_other(
    wanted: list[Demand], budget: int
) -> None:
    assert share_by_weight(wanted, budget) == share_slowly(wanted, budget)


@given(st.lists(demands, max_size=40), st.integers(0, 5000))
def test_shares_use_up_the_budget_and_nobody_gets_more_than_it_wants(
    wanted: list[Demand], budget: int
) -> None:
    shares = share_by_weight(wanted, budget)
    assert sum(shares) == min(budget, sum(tokens for _, tokens in wanted))
    assert all(0 <= share <= tokens for share, (_, tokens) in zip(shares, wanted, strict=True))


@given(st.lists(demands, max_size=8), st.integers(0, 600), st.randoms(use_true_random=False))
def test_shares_do_not_depend_on_the_order_of_the_classes(
    wanted: list[Demand], budget: int, random: Random
) -> None:
    shuffled = random.sample(wanted, len(wanted))
    before = sorted(zip(wanted, share_by_weight(wanted, budget), strict=True))
    assert before == sorted(zip(shuffled, share_by_weight(shuffled, budget), strict=True))


def test_shares_are_proportional_and_what_one_cannot_use_goes_to_the_others() -> None:
    assert share_by_weight([Demand(3.0, 1000), Demand(1.0, 1000)], 400) == [300, 100]
    assert share_by_weight([Demand(3.0, 30), Demand(1.0, 1000), Demand(1.0, 1000)], 400) == [
        30,
        185,
        185,
    ]


def test_the_lightest_class_moves_in_every_step() -> None:
    assert share_by_weight([Demand(1e6, 5000), Demand(1e-6, 5000)], 512) == [511, 1]


@given(
    st.lists(
        st.builds(
            Demand,
            st.sampled_from([5e-324, 1e-308, 1.0, 1e308, 1.7e308]),
            st.integers(0, 300),
        ),
        max_size=8,
    ),
    st.integers(-10, 600),
)
def test_weights_at_the_ends_of_the_number_range_are_shared_all_the_same(
    wanted: list[Demand], budget: int
) -> None:
    shares = share_by_weight(wanted, budget)
    assert sum(shares) == min(max(budget, 0), sum(tokens for _, tokens in wanted))
    assert all(0 <= share <= tokens for share, (_, tokens) in zip(shares, wanted, strict=True))


def prefill(request_id: str, task_class: str, tokens: int, admission: int) -> RunningPrefill:
    weight = {"heavy": 3.0, "light": 1.0}[task_class]
    return RunningPrefill(request_id, task_class, weight, tokens, admission)


def test_running_prompts_leave_waiting_ones_their_share() -> None:
    plan = plan_prefill(
        budget_tokens=400,
        prefills=[prefill("long", "light", 5000, 1)],
        waiting=[WaitingPrompts("heavy", 3.0, 250)],
    )
    assert plan == {"long": 150}


def test_running_prompts_take_all_when_nothing_waits() -> None:
    plan = plan_prefill(budget_tokens=400, prefills=[prefill("x", "light", 5000, 1)], waiting=[])
    assert plan == {"x": 400}


def test_within_a_class_the_earliest_admitted_goes_first() -> None:
    plan = plan_prefill(
        budget_tokens=400,
        prefills=[
            prefill("third", "light", 500, 9),
            prefill("first", "light", 60, 2),
            prefill("second", "light", 5000, 4),
            prefill("other", "heavy", 5000, 3),
        ],
        waiting=[WaitingPrompts("light", 1.0, 500)],
    )
    assert plan == {"first": 60, "second": 40, "third": 0, "other": 300}


@given(
    budget=st.integers(0, 600),
    running=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 400)), max_size=12),
    waiting=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 400)),
    random=st.randoms(use_true_random=False),
)
def test_a_plan_wastes_nothing_and_knows_no_names(
    budget: int, running: list[tuple[str, int]], waiting: dict[str, int], random: Random
) -> None:
    weights = {"a": 1.0, "b": 2.5, "c": 2.5, "d": 100.0}

    def plan(names: dict[str, str], order: list[int]) -> dict[str, int]:
        return plan_prefill(
            budget_tokens=budget,
            prefills=[
                RunningPrefill(
                    str(i), names[running[i][0]], weights[running[i][0]], running[i][1], i
                )
                for i in order
            ],
            waiting=[WaitingPrompts(names[k], weights[k], n) for k, n in waiting.items()],
        )

    order = list(range(len(running)))
    planned = plan({name: name for name in "abcd"}, order)
    assert all(planned[str(i)] <= tokens for i, (_, tokens) in enumerate(running))
    wanted, waits = sum(tokens for _, tokens in running), sum(waiting.values())
    assert min(budget, wanted + waits) - waits <= sum(planned.values()) <= min(budget, wanted)
    shuffled = random.sample(order, len(order))
    assert plan(dict(zip("abcd", ("w", "z", "y", "x"), strict=True)), shuffled) == planned


def ask(cap: PrefillCap, now_s: float, **changes: object) -> int:
    """A busy step: 1,900 tokens of prompt take 66 ms, the objective is 25 ms."""
    step: dict[str, object] = {
        "model": GPU,
        "paces": [Pace(0.025)],
        "decoding": 8,
        "kv_tokens": 10_000,
        "full_tokens": 1900,
        "demand_tokens": 50_000,
        "now_s": now_s,
    }
    return cap.tokens(**(step | changes))  # type: ignore[arg-type] # as given


def a_cap_with_credit() -> PrefillCap:
    cap = PrefillCap()
    ask(cap, 0.0)
    return cap


def test_a_capped_step_takes_as_long_as_the_tightest_pace_allows() -> None:
    cap = a_cap_with_credit()
    tokens = ask(cap, 60.0, paces=[Pace(0.2), Pace(0.025), Pace(0.1)])
    assert GPU.time_s(tokens, 8, 10_000) <= 0.025 < GPU.time_s(tokens + 1, 8, 10_000)
    assert (cap.capped_steps, cap.withheld_tokens) == (1, 1900 - tokens)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": None},
        {"paces": []},
        {"paces": [Pace(0.1)]},  # even a full step keeps it
        {"paces": [Pace(0.005)]},  # not even a step without prompts keeps it
        {"demand_tokens": 100},  # all of it takes less than the objective
    ],
)
def test_a_cap_that_gains_nothing_is_not_set(changes: dict[str, object]) -> None:
    cap = a_cap_with_credit()
    assert ask(cap, 60.0, **changes) == 1900
    assert cap.capped_steps == cap.withheld_tokens == 0


def test_a_hopeless_objective_does_not_hide_one_that_can_be_kept() -> None:
    assert ask(a_cap_with_credit(), 60.0, paces=[Pace(0.005), Pace(0.025)]) < 1900


def test_prompts_move_on_under_the_tightest_objective() -> None:
    base_s = GPU.time_s(0, 8, 10_000)
    assert ask(a_cap_with_credit(), 60.0, paces=[Pace(base_s)]) == 1900 // 16
    few = ask(a_cap_with_credit(), 60.0, paces=[Pace(base_s)], full_tokens=64)
    assert few == LEAST_CHUNK_TOKENS


def test_a_decode_ahead_of_its_schedule_can_wait_and_one_behind_falls_back_no_further() -> None:
    assert Pace(0.1).allowed_s == 0.1
    assert Pace(0.1, ahead_s=0.2).allowed_s == pytest.approx(0.3)
    assert Pace(0.1, ahead_s=-9.0).allowed_s == 0.1
    assert Pace(0.1, ahead_s=9.0).allowed_s == pytest.approx(0.4)


@given(
    model=models,
    gaps_s=st.lists(st.floats(0.0, 5.0), min_size=10, max_size=300),
    ratio=st.floats(0.001, 0.1),
)
def test_the_extra_time_while_prompts_queue_up_stays_within_its_share(
    model: StepTimeModel, gaps_s: list[float], ratio: float
) -> None:
    cap, now_s, extra_s = PrefillCap(ratio, window_s=60.0), 0.0, 0.0
    for gap_s in gaps_s:
        now_s += gap_s
        tokens = ask(cap, now_s, model=model, paces=[Pace(0.03)])
        extra_s += model.time_s(0, 8, 10_000) * (1 - tokens / 1900)
        assert extra_s <= ratio * (30.0 + 0.5 * now_s)


def test_a_clock_that_steps_back_earns_nothing() -> None:
    cap = PrefillCap()
    ask(cap, 1000.0)
    ask(cap, 10.0)
    assert ask(cap, 10.0) == 1900


def backlog(seed: int, count: int = 4000) -> list[Request]:
    random = Random(seed)
    return [a_request(random, 0.0) for _ in range(count)]


@settings(max_examples=10, deadline=None)
@given(truth=models, tightness=st.floats(1.1, 5.0), seed=st.integers(0, 100))
def test_in_saturation_at_most_two_percent_of_the_tokens_are_lost(
    truth: StepTimeModel, tightness: float, seed: int
) -> None:
    tpot_s = tightness * truth.time_s(0, 16, 16_000)
    stock = StepEngine(truth, tpot_s).run(backlog(seed), 60.0)
    ours = StepEngine(truth, tpot_s, cap=PrefillCap(), shares=True).run(backlog(seed), 60.0)
    assert ours.waiting
    assert ours.tokens_per_s() >= 0.98 * stock.tokens_per_s() - 1.0


def test_caps_without_a_limit_to_what_they_cost_would_lose_more() -> None:
    stock = StepEngine(GPU, 0.015).run(backlog(1), 60.0)
    unlimited = StepEngine(GPU, 0.015, cap=PrefillCap(max_overhead_ratio=1e6))
    unlimited.run(backlog(1), 60.0)
    assert unlimited.tokens_per_s() < 0.95 * stock.tokens_per_s()
    assert unlimited.attainment_ratio() > stock.attainment_ratio()


@pytest.mark.parametrize("clients", [16, 32, 64])
def test_with_as_many_clients_as_slots_at_most_two_percent_are_lost(clients: int) -> None:
    def serve(cap: PrefillCap | None) -> float:
        random = Random(3)
        engine = StepEngine(GPU, 0.025, 2048, 64, cap=cap)
        first = [a_request(random, 0.0) for _ in range(clients)]
        engine.run(first, 60.0, again=lambda now_s: a_request(random, now_s))
        return engine.tokens_per_s()

    assert serve(PrefillCap()) >= 0.98 * serve(None)


def test_where_there_is_room_more_decodes_keep_their_pace_at_no_loss() -> None:
    def serve(cap: PrefillCap | None) -> StepEngine:
        return StepEngine(GPU, 0.025, 2048, 64, cap=cap).run(poisson(8.0, 120.0, seed=1), math.inf)

    stock, ours = serve(None), serve(PrefillCap())
    assert 1 - ours.attainment_ratio() < 0.8 * (1 - stock.attainment_ratio())
    assert ours.tokens_per_s() == pytest.approx(stock.tokens_per_s(), rel=0.005)


def test_sharing_brings_first_tokens_of_the_heavy_class_forward_at_no_loss() -> None:
    def serve(*, shares: bool) -> StepEngine:
        engine = StepEngine(GPU, 0.025, 2048, 64, shares=shares)
        return engine.run(poisson(9.0, 60.0, seed=2), math.inf)

    stock, ours = serve(shares=False), serve(shares=True)
    assert ours.mean_ttft_s() < 0.8 * stock.mean_ttft_s()
    assert ours.tokens_per_s() == pytest.approx(stock.tokens_per_s(), rel=0.005)
