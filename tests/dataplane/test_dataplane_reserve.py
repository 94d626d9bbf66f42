import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.config import ReserveSettings
from dataplane.reserve import KvReserve
from dataplane.weights import Tier

TOTAL_BLOCKS = 1000
NOTHING = (0, 0, 0, 0)
LONG_S = 3600.0


def used_to(*held_blocks: int, **settings: Any) -> KvReserve:
    """After an hour in which the tiers held these blocks; now they hold none."""
    reserve = KvReserve(ReserveSettings(**settings), TOTAL_BLOCKS)
    reserve.observe(held_blocks, 0.0)
    reserve.observe(NOTHING, LONG_S)
    return reserve


def admits(reserve: KvReserve, tier: Tier, need_blocks: int, **fields: Any) -> bool:
    usual: dict[str, Any] = {"free_blocks": 1000, "running": 5, "overdue": False, "now_s": LONG_S}
    return reserve.admits(tier, need_blocks=need_blocks, **{**usual, **fields})


def test_the_reserve_is_what_a_tier_is_used_to_times_its_factor_less_what_it_has() -> None:
    reserve = KvReserve(ReserveSettings(), TOTAL_BLOCKS)
    reserve.observe((100, 0, 0, 0), 0.0)
    reserve.observe((30, 0, 0, 0), LONG_S)
    assert reserve.withheld_blocks(Tier.P1) == 150


def test_each_tier_leaves_free_what_all_better_tiers_need() -> None:
    reserve = used_to(100, 50, 20, 500)
    assert [reserve.withheld_blocks(tier) for tier in Tier] == [0, 180, 245, 267]


def test_a_head_is_admitted_as_long_as_the_reserve_stays_free() -> None:
    assert admits(used_to(100, 0, 0, 0), Tier.P2, 820)
    assert not admits(used_to(100, 0, 0, 0), Tier.P2, 821)


def test_no_tier_reserves_against_itself_or_a_better_one() -> None:
    reserve = used_to(0, 0, 100, 0)
    assert admits(reserve, Tier.P1, 1000)
    assert admits(reserve, Tier.P2, 1000)
    assert not admits(reserve, Tier.REST, 1000)


@pytest.mark.parametrize(
    ("tier", "exempt"),
    [(Tier.P0, {}), (Tier.P2, {"running": 0}), (Tier.P2, {"overdue": True})],
    ids=["P0", "nothing-runs", "waited-too-long"],
)
def test_some_are_never_held_back(tier: Tier, exempt: dict[str, Any]) -> None:
    assert admits(used_to(400, 400, 400, 0), tier, 1000, **exempt)


def test_switched_off_it_holds_nobody_back() -> None:
    assert admits(used_to(400, 0, 0, 0, enabled=False), Tier.REST, 1000)


def test_a_runaway_factor_closes_no_more_than_its_share() -> None:
    reserve = used_to(900, 0, 0, 0, factor_p0=100.0)
    assert reserve.withheld_blocks(Tier.REST) == 500
    assert admits(reserve, Tier.REST, 500)


def test_without_traffic_of_better_tiers_memory_itself_decides() -> None:
    fresh = KvReserve(ReserveSettings(), TOTAL_BLOCKS)
    fresh.observe((0, 0, 0, 700), 1.0)
    assert admits(fresh, Tier.REST, 300, free_blocks=300)
    assert admits(fresh, Tier.REST, 301, free_blocks=300), "vLLM knows that it does not fit"


def test_the_reserve_of_a_tier_that_went_quiet_halves_and_vanishes() -> None:
    reserve, withheld = used_to(100, 0, 0, 0), []
    for quiet_s in (0.0, 30.0, 60.0, 300.0):
        reserve.observe(NOTHING, LONG_S + quiet_s)
        withheld.append(reserve.withheld_blocks(Tier.P1))
    assert withheld == [180, 90, 45, 0]


def test_a_tier_held_back_gets_one_in_every_so_often_and_never_starves() -> None:
    reserve = used_to(100, 0, 0, 0)
    admitted_s: list[float] = []
    for tick in range(1000):
        now_s = LONG_S + 0.1 * tick
        reserve.observe((100, 0, 0, 0), now_s)
        if admits(reserve, Tier.P2, 60, free_blocks=100, now_s=now_s):
            admitted_s.append(now_s)
    assert len(admitted_s) == 3
    assert all(later - sooner >= 30.0 for sooner, later in pairwise(admitted_s))
    assert (reserve.let_through[Tier.P2], reserve.held_back[Tier.P2]) == (3, 4)


def test_one_that_is_let_through_keeps_its_turn_until_its_blocks_are_there() -> None:
    reserve = used_to(100, 0, 0, 0)
    assert not admits(reserve, Tier.P2, 900, free_blocks=850)
    for now_s in (LONG_S + 30.0, LONG_S + 31.0):
        assert admits(reserve, Tier.P2, 900, free_blocks=850, now_s=now_s)
    assert admits(reserve, Tier.P2, 900, free_blocks=910, now_s=LONG_S + 32.0)
    assert not admits(reserve, Tier.P2, 900, free_blocks=910, now_s=LONG_S + 33.0)


def test_a_vip_burst_finds_its_blocks_that_a_batch_flood_would_have_taken() -> None:
    reserve, free_blocks = KvReserve(ReserveSettings(), TOTAL_BLOCKS), 1000
    vip_blocks = 0
    for second in range(120):
        vip_blocks = 150 if second % 10 < 5 else 50
        reserve.observe((vip_blocks, 0, 0, 0), float(second))
    free_blocks -= vip_blocks
    flooded = 0
    while admits(reserve, Tier.P2, 25, free_blocks=free_blocks, now_s=119.0):
        free_blocks -= 25
        flooded += 1
    assert flooded > 0.7 * (1000 - vip_blocks) / 25, "most of the memory is at work"
    assert free_blocks >= 100, "and the next burst fits"


def weighted_mean(
    history: list[tuple[float, int]], now_s: float, half_life_s: float = 30.0
) -> float:
    """The integral of what was held, each moment weighing half after half_life_s."""
    decay = math.log(2.0) / half_life_s
    ends = [*(at_s for at_s, _ in history[1:]), now_s]
    return sum(
        held * (math.exp(-decay * (now_s - end_s)) - math.exp(-decay * (now_s - at_s)))
        for (at_s, held), end_s in zip(history, ends, strict=True)
    )


@settings(deadline=None)
@given(
    history=st.lists(
        st.tuples(st.floats(0.01, 40.0), st.tuples(*[st.integers(0, 300)] * 4)),
        min_size=1,
        max_size=12,
    ),
    looks=st.integers(1, 5),
)
def test_it_withholds_what_the_whole_history_says_however_often_it_looks(
    history: list[tuple[float, tuple[int, int, int, int]]], looks: int
) -> None:
    reserve, now_s = KvReserve(ReserveSettings(), TOTAL_BLOCKS), 50.0
    seen: list[tuple[float, tuple[int, int, int, int]]] = []
    for lasts_s, held in history:
        seen.append((now_s, held))
        for look in range(looks):
            reserve.observe(held, now_s + lasts_s * look / looks)
        now_s += lasts_s
    held = history[-1][1]
    reserve.observe(held, now_s)
    reserved = 0.0
    for tier, factor in ((Tier.P0, 1.8), (Tier.P1, 1.3), (Tier.P2, 1.1)):
        mean = weighted_mean([(at_s, blocks[tier]) for at_s, blocks in seen], now_s)
        reserved += max(0.0, factor * mean - held[tier])
        assert abs(reserve.withheld_blocks(Tier(tier + 1)) - min(reserved, 500.0)) <= 1.0


@settings(deadline=None)
@given(
    held=st.tuples(*[st.integers(0, 400)] * 4),
    need_blocks=st.integers(0, 1000),
    free_blocks=st.integers(0, 1000),
)
def test_a_better_tier_and_a_smaller_need_are_never_worse_off(
    held: tuple[int, int, int, int], need_blocks: int, free_blocks: int
) -> None:
    def answer(tier: Tier, need: int) -> bool:
        return admits(used_to(*held), tier, need, free_blocks=free_blocks)

    answers = [answer(tier, need_blocks) for tier in Tier]
    assert answers == sorted(answers, reverse=True)
    assert answer(Tier.REST, need_blocks // 2) >= answers[Tier.REST]
