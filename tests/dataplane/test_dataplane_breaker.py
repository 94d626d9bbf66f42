from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.breaker import FIRST_STEPS, Breaker, BreakerState, TroubleWatch, UsualStepTime
from dataplane.config import BreakerSettings
from dataplane.weights import Tier

CLOSED, DEGRADED, OPEN, HALF_OPEN = BreakerState


class Engine:
    """Runs steps on a clock of its own and shows every one to the breaker."""

    def __init__(self, usual_s: float = 0.03, **settings: Any) -> None:
        self.breaker = Breaker(BreakerSettings(**settings))
        self.usual_s = usual_s
        self.now_s = 1000.0
        self.steps(for_s=100 * usual_s)

    @property
    def state(self) -> BreakerState:
        return self.breaker.state(self.now_s)

    def step(self, step_s: float, incidents: int = 0) -> None:
        self.now_s += step_s
        self.breaker.step(self.now_s, step_s, incidents)

    def steps(self, for_s: float, step_s: float | None = None, incidents: int = 0) -> None:
        step_s = step_s or self.usual_s
        for _ in range(round(for_s / step_s)):
            self.step(step_s, incidents)

    def suffer(self, for_s: float = 1.0) -> None:
        """Steps of four times the usual length, with allocation failures in each."""
        self.steps(for_s, step_s=4 * self.usual_s, incidents=3)

    def idle(self, for_s: float) -> None:
        self.now_s += for_s

    def admits(self, tier: Tier, *, running: int = 5) -> bool:
        return self.breaker.admits(tier, self.now_s, running=running)


def open_engine(**settings: Any) -> Engine:
    engine = Engine(**settings)
    engine.suffer()
    assert engine.state is OPEN
    return engine


# What trouble is.


def test_many_preemptions_at_the_usual_pace_are_no_trouble() -> None:
    engine = Engine()
    engine.steps(10.0, incidents=5)
    assert engine.state is CLOSED


def test_slow_steps_without_preemptions_are_no_trouble() -> None:
    engine = Engine()
    engine.steps(10.0, step_s=0.3)
    assert engine.state is CLOSED


def test_five_incidents_in_a_second_are_borne_and_six_are_not() -> None:
    for incidents, state in ((5, CLOSED), (6, DEGRADED)):
        engine = Engine()
        engine.step(0.12, incidents)
        assert engine.state is state


def test_incidents_of_more_than_a_second_ago_do_not_count() -> None:
    engine = Engine()
    engine.step(0.03, incidents=6)
    engine.steps(1.0)
    engine.step(0.12, incidents=5)
    assert engine.state is CLOSED


def test_before_the_usual_pace_is_known_nothing_is_slow() -> None:
    breaker = Breaker(BreakerSettings())
    for step in range(FIRST_STEPS):
        breaker.step(float(step), 1.0, 100)
    assert breaker.state(float(FIRST_STEPS)) is CLOSED


def test_a_fast_engine_may_become_many_times_slower_below_the_floor() -> None:
    engine = Engine(usual_s=0.005)
    engine.steps(5.0, step_s=0.045, incidents=3)
    assert engine.state is CLOSED


@pytest.mark.parametrize("usual_s", [0.02, 0.05, 0.1, 0.2])
def test_the_defaults_suit_fast_and_slow_engines(usual_s: float) -> None:
    engine = Engine(usual_s)
    for _ in range(100):  # now and then a step is half as long again, and one is preempted
        engine.steps(4 * usual_s)
        engine.step(1.5 * usual_s, incidents=1)
    assert engine.state is CLOSED
    engine.suffer(1.0 + 8 * usual_s)
    assert engine.state is OPEN


def test_switched_off_it_never_trips() -> None:
    engine = Engine(enabled=False)
    engine.suffer(10.0)
    assert engine.state is CLOSED


# How it gets worse, and what that means for the tiers.


def test_trouble_degrades_p1_at_once_and_stops_p2_when_it_goes_on() -> None:
    engine = Engine()
    engine.step(0.12, incidents=6)
    assert engine.state is DEGRADED
    assert engine.breaker.tier(Tier.P1, engine.now_s) is Tier.P2
    assert engine.admits(Tier.P2)
    engine.step(0.12, incidents=6)
    assert engine.state is DEGRADED, "0.12 s is not long enough"
    engine.step(0.12, incidents=6)
    assert engine.state is OPEN
    assert not engine.admits(Tier.P2)
    assert not engine.admits(Tier.REST)
    assert engine.breaker.trips == {DEGRADED: 1, OPEN: 1}
    assert (engine.breaker.refused[Tier.P2], engine.breaker.refused[Tier.REST]) == (1, 1)


def test_an_open_breaker_admits_p1_so_that_an_engine_without_tiers_goes_on() -> None:
    assert open_engine().admits(Tier.P1)


def test_an_open_breaker_admits_anyone_when_nothing_runs() -> None:
    assert open_engine().admits(Tier.REST, running=0)


def test_trouble_that_pauses_does_not_open() -> None:
    engine = Engine()
    for _ in range(10):
        engine.step(0.12, incidents=6)
        engine.steps(0.3)
    assert engine.state is DEGRADED


def test_alternating_slow_and_usual_steps_are_trouble_that_goes_on() -> None:
    engine = Engine()
    for _ in range(4):
        engine.step(0.12, incidents=3)
        engine.step(0.03)
    assert engine.state is OPEN


@settings(deadline=None)
@given(
    usual_s=st.floats(0.01, 0.2),
    slow=st.sampled_from([2.1, 5.0, 40.0]).flatmap(
        lambda slowest: st.lists(st.floats(2.1, slowest), min_size=20, max_size=20)
    ),
)
def test_it_opens_within_half_a_second_of_the_first_slow_step(
    usual_s: float, slow: list[float]
) -> None:
    engine = Engine(usual_s)
    started_s = trouble_s = None
    for ratio in slow:
        engine.step(min(max(ratio * usual_s, 0.0525), 0.5), incidents=6)
        started_s = engine.now_s if started_s is None else started_s
        if trouble_s is None and engine.state is not CLOSED:
            trouble_s = engine.now_s
        if engine.state is OPEN:
            break
    assert started_s is not None
    assert trouble_s is not None
    longest_s = min(max(max(slow) * usual_s, 0.0525), 0.5)
    assert engine.state is OPEN
    assert engine.now_s - trouble_s <= 0.2 + longest_s
    if longest_s <= 0.1:
        assert engine.now_s - started_s <= 0.5


def test_on_a_slow_engine_the_first_decision_after_the_delay_finds_it_open() -> None:
    engine = Engine(usual_s=0.2)
    engine.step(0.6, incidents=6)
    engine.step(0.6, incidents=6)
    assert engine.state is OPEN


# How it gets better.


def test_an_open_breaker_half_opens_after_the_cool_down_and_closes_when_it_stays_quiet() -> None:
    engine = open_engine()
    for state, for_s in ((OPEN, 4.0), (HALF_OPEN, 3.0), (CLOSED, 5.0)):
        engine.steps(for_s)
        assert engine.state is state


def test_an_idle_engine_recovers_all_the_same() -> None:
    engine = open_engine()
    engine.idle(60.0)
    assert engine.state is CLOSED
    assert engine.breaker.tier(Tier.P1, engine.now_s) is Tier.P1
    engine.step(0.03)
    assert engine.state is CLOSED


def test_a_degraded_breaker_closes_after_a_quiet_time() -> None:
    engine = Engine()
    engine.step(0.12, incidents=6)
    engine.steps(4.8)
    assert engine.state is DEGRADED
    engine.steps(0.6)
    assert engine.state is CLOSED


def test_new_trouble_long_after_the_last_degrades_first() -> None:
    engine = Engine()
    engine.step(0.12, incidents=6)
    engine.idle(30.0)
    engine.step(0.12, incidents=6)
    assert engine.state is DEGRADED


def test_half_open_lets_unprotected_requests_in_one_by_one() -> None:
    engine = open_engine()
    engine.idle(5.0)
    admitted_s = []
    for _ in range(150):
        engine.step(0.03)
        if engine.admits(Tier.P2):
            engine.breaker.admitted(Tier.P2, engine.now_s)
            admitted_s.append(engine.now_s)
    assert engine.state is HALF_OPEN
    assert len(admitted_s) == 9
    assert all(later - sooner >= 0.5 for sooner, later in pairwise(admitted_s))


def test_a_relapse_opens_at_once_for_twice_as_long_up_to_the_longest() -> None:
    engine, cool_downs_s = open_engine(), []
    for _ in range(6):
        cool_downs_s.append(round(engine.breaker.retry_after_s(engine.now_s)))
        engine.idle(cool_downs_s[-1] + 1.0)
        assert engine.state is HALF_OPEN
        engine.step(0.12, incidents=6)
        assert engine.state is OPEN
    assert cool_downs_s == [5, 10, 20, 40, 60, 60]


def test_after_it_closed_the_cool_down_is_the_first_again() -> None:
    engine = open_engine()
    engine.idle(6.0)
    engine.suffer(0.12)
    engine.idle(100.0)
    engine.suffer(0.5)
    assert engine.breaker.retry_after_s(engine.now_s) == pytest.approx(5.0)


def test_retry_after_says_when_a_refused_request_may_come_back() -> None:
    engine = open_engine()
    wait_s = engine.breaker.retry_after_s(engine.now_s)
    assert 0.0 < wait_s <= 5.0
    engine.idle(wait_s)
    assert engine.admits(Tier.P2)
    assert engine.breaker.retry_after_s(engine.now_s) == 0.0
    engine.breaker.admitted(Tier.P2, engine.now_s)
    assert engine.breaker.retry_after_s(engine.now_s) == pytest.approx(0.5)


def test_an_engine_that_is_slower_for_good_closes_and_stays_closed() -> None:
    engine = Engine()
    engine.suffer(120.0)
    engine.idle(120.0)
    engine.suffer(30.0)
    assert engine.state is CLOSED


# Invariants, against obvious versions.

TICK_S = 1 / 64
"""Times are multiples of it, so that sums of them are exact."""
SETTINGS = BreakerSettings(
    open_after_s=12 * TICK_S, cool_down_s=1.0, max_cool_down_s=4.0, quiet_s=1.5
)
STEPS = st.lists(
    st.tuples(st.integers(1, 20), st.sampled_from([0, 0, 3, 6, 9]), st.integers(0, 3)).flatmap(
        lambda step: st.tuples(st.just(step[0]), st.just(step[1]), st.just(step[2] ** 5))
    ),
    max_size=60,
)
"""Ticks that a step takes, its incidents, and idle ticks before it."""


def ticks_by_the_book(ends: dict[int, bool], last_tick: int) -> list[BreakerState]:
    """The states at each tick, by looking at every single one; ends: trouble at a step's end."""
    state, since, cool_down, trouble_since, last_trouble = CLOSED, 0, 64, None, 0
    states = []
    for tick in range(last_tick + 1):
        if state is OPEN and tick - since == cool_down:
            state, since = HALF_OPEN, tick
        if state in (DEGRADED, HALF_OPEN) and tick - max(since, last_trouble) == 96:
            state, cool_down = CLOSED, 64
        trouble = ends.get(tick)
        if trouble:
            last_trouble = tick
            trouble_since = tick if state is CLOSED or trouble_since is None else trouble_since
            if state is HALF_OPEN:
                state, since, cool_down = OPEN, tick, min(2 * cool_down, 256)
            elif state is CLOSED:
                state, since = DEGRADED, tick
            elif state is DEGRADED and tick - trouble_since >= 12:
                state, since = OPEN, tick
        elif trouble is False:
            trouble_since = None
        states.append(state)
    return states


def trouble_by_the_book(steps: Iterable[tuple[int, int, int]]) -> dict[int, bool]:
    """Trouble at the end of each step, from the whole history each time."""
    past: list[tuple[int, float, int]] = []
    usual, ends, tick = UsualStepTime(), {}, 0
    for ticks, incidents, idle in steps:
        threshold_s = max(0.05, 2.0 * (usual.median_s or 1e9))
        usual.add(ticks * TICK_S)
        tick += idle + ticks
        past.append((tick, ticks * TICK_S, incidents))
        latest = [step_s for end, step_s, _ in past if (tick - end) * TICK_S < 0.1]
        recent = sum(count for end, _, count in past if (tick - end) * TICK_S < 1.0)
        ends[tick] = sum(latest) / len(latest) > threshold_s and recent > 5
    return ends


@settings(deadline=None)
@given(steps=STEPS, asks=st.sampled_from([1, 7, 1000]))
def test_it_does_what_looking_at_every_moment_says_however_often_it_is_asked(
    steps: list[tuple[int, int, int]], asks: int
) -> None:
    steps = [(2, 0, 0)] * FIRST_STEPS + steps
    breaker, tick, last_tick = Breaker(SETTINGS), 0, sum(t + i for t, _, i in steps) + 1000
    states = ticks_by_the_book(trouble_by_the_book(steps), last_tick)
    for ticks, incidents, idle in steps:
        for asked in range(tick, tick + idle + ticks, asks):
            assert breaker.state(asked * TICK_S) is states[asked]
        tick += idle + ticks
        breaker.step(tick * TICK_S, ticks * TICK_S, incidents)
        assert breaker.state(tick * TICK_S) is states[tick]
    for asked in range(tick, last_tick + 1, asks):
        assert breaker.state(asked * TICK_S) is states[asked]
    assert states[-1] is CLOSED, "all is well in the end"


@settings(deadline=None)
@given(steps=STEPS)
def test_p0_is_never_touched(steps: list[tuple[int, int, int]]) -> None:
    engine = Engine()
    for ticks, incidents, idle in steps:
        engine.idle(idle * TICK_S)
        engine.step(ticks * TICK_S, incidents)
        assert engine.admits(Tier.P0)
        assert engine.breaker.tier(Tier.P0, engine.now_s) is Tier.P0
        assert engine.breaker.tier(Tier.P2, engine.now_s) is Tier.P2
    assert engine.breaker.refused[Tier.P0] == 0


@pytest.mark.parametrize(("short", "long", "usual_s"), [(30, 1, 0.03), (4, 1, 0.3), (1, 0, 0.03)])
def test_the_usual_step_time_is_the_one_in_which_most_time_is_spent(
    short: int, long: int, usual_s: float
) -> None:
    usual = UsualStepTime()
    for _ in range(int(600 / (0.03 * short + 0.3 * long))):
        for step_s in (*[0.03] * short, *[0.3] * long):
            usual.add(step_s)
    assert usual.median_s == pytest.approx(usual_s, rel=0.02)


def test_half_a_minute_of_slow_steps_does_not_become_usual() -> None:
    watch = TroubleWatch(BreakerSettings())
    for _ in range(100):
        watch.step(0.0, 0.03, 0)
    for _ in range(250):
        watch.step(0.0, 0.12, 0)
    assert watch.threshold_s is not None
    assert watch.threshold_s < 0.12
