"""The breaker in vLLM's own scheduler: trouble of its own making, on a clock that a test moves."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from scripted_engine import STEP_S, ScriptedEngine

from dataplane.breaker import BreakerState
from dataplane.notices import RefusalNotices
from dataplane.refusals import NoticeBoard, NoticeWriter
from dataplane.weights import ClassPolicy, Slo, Tier

POLICIES = {
    "vip": ClassPolicy("vip", 4.0, 1.0, Slo(60.0), tier=Tier.P0),
    "chat": ClassPolicy("chat", 2.0, 1.0, Slo(60.0), tier=Tier.P1),
    "bulk": ClassPolicy("bulk", 1.0, 1.0, Slo(60.0), tier=Tier.P2),
}
SLOW_STEP_S = 0.1


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine()
    engine.publish(POLICIES)
    yield engine
    engine.close()


def state(engine: ScriptedEngine) -> BreakerState:
    breaker = engine.scheduler._steering.admission.breaker
    return BreakerState(breaker.state(engine.clock.now_s))


def step_slowly(engine: ScriptedEngine) -> None:
    engine.clock.now_s += SLOW_STEP_S - STEP_S
    engine.step()


def calm_steps(engine: ScriptedEngine) -> None:
    """Enough of them for the breaker to know how long a step takes here."""
    engine.arrive("chat", prompt_tokens=8, max_tokens=45)
    for _ in range(50):
        engine.step()
    assert engine.is_idle
    assert state(engine) is BreakerState.CLOSED


def until_open(engine: ScriptedEngine) -> float:
    """Slow steps while memory is short; how long it took, in the engine's time."""
    for number in range(3):
        engine.arrive("chat", prompt_tokens=48, max_tokens=48, first_token=number)
    for number in range(3, 5):
        engine.arrive("bulk", prompt_tokens=40, max_tokens=8, first_token=number)
    troubled_since_s = None
    for _ in range(200):
        step_slowly(engine)
        if state(engine) is not BreakerState.CLOSED and troubled_since_s is None:
            troubled_since_s = engine.clock.now_s - SLOW_STEP_S
        if state(engine) is BreakerState.OPEN:
            assert troubled_since_s is not None
            return engine.clock.now_s - troubled_since_s
    pytest.fail("the breaker never opened")


def test_memory_trouble_with_slow_steps_opens_it_within_half_a_second(
    engine: ScriptedEngine,
) -> None:
    calm_steps(engine)
    assert until_open(engine) <= 0.5
    assert engine.scheduler._barrier.faults == 0


def test_slow_steps_alone_do_not(engine: ScriptedEngine) -> None:
    calm_steps(engine)
    engine.arrive("bulk", prompt_tokens=8, max_tokens=40)
    for _ in range(30):
        step_slowly(engine)
    assert state(engine) is BreakerState.CLOSED


def test_while_it_is_open_bulk_waits_and_the_vip_does_not(engine: ScriptedEngine) -> None:
    calm_steps(engine)
    until_open(engine)
    vip = engine.arrive("vip", prompt_tokens=4, max_tokens=2, first_token=9)
    bulk = engine.arrive("bulk", prompt_tokens=4, max_tokens=2, first_token=10)
    already = len(engine.schedule)
    while state(engine) is BreakerState.OPEN and len(engine.scheduler.running) > 0:
        step_slowly(engine)
    steps = engine.schedule[already:]
    assert any(vip in one for one in steps)
    assert not any(bulk in one for one in steps[:-1])


def test_it_recovers_and_loses_nobody(engine: ScriptedEngine) -> None:
    calm_steps(engine)
    until_open(engine)
    engine.arrive("bulk", prompt_tokens=4, max_tokens=2, first_token=10)
    engine.drain()
    engine.clock.now_s += 60.0
    assert state(engine) is BreakerState.CLOSED
    engine.check()


def test_the_api_servers_hear_of_it_while_it_is_open_and_only_then(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    notices = RefusalNotices(
        NoticeWriter(tmp_path, engine_id="e", interval_s=0.25),
        breaker=engine.scheduler._steering.admission.breaker,
        in_force=engine.scheduler._in_force,
        seen=lambda: ["chat", "nameless"],
        clock=engine.clock,
    )

    def heard() -> Mapping[str, float]:
        notices.write(engine.clock.now_s)
        return NoticeBoard(tmp_path).refused(engine.clock.now_s, engine.clock.wall_s())

    calm_steps(engine)
    assert heard() == {}
    until_open(engine)
    assert heard().keys() == {"bulk", "nameless"}
    assert all(0 < retry_after_s <= 5.0 for retry_after_s in heard().values())
    engine.clock.now_s += 6.0
    assert state(engine) is BreakerState.HALF_OPEN
    assert heard() == {}
