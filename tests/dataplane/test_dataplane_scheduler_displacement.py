"""Preemption by weight in vLLM's own scheduler, on a clock that a test moves."""

from collections.abc import Iterator

import pytest
from scripted_engine import SMALL, STEP_S, ScriptedEngine
from vllm.v1.core.sched.interface import PauseState

from dataplane.config import PreemptionSettings
from dataplane.weights import ClassPolicy, Discipline, Slo, Tier

POLICIES = {
    "vip": ClassPolicy("vip", 8.0, 1.0, Slo(2.0), tier=Tier.P0),
    "bulk": ClassPolicy("bulk", 1.0, 1.0, Slo(60.0), tier=Tier.P2),
}
SLOW_STEP_S = 0.1


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """All slots are taken by work that has run for a while and has a while to go."""
    engine = ScriptedEngine()
    engine.publish(POLICIES)
    engine.arrive("bulk", prompt_tokens=8, max_tokens=45)
    for _ in range(50):
        step(engine)
    assert engine.is_idle
    for number in range(SMALL.max_num_seqs):
        engine.arrive("bulk", prompt_tokens=4, max_tokens=40, first_token=number)
    for _ in range(15):
        step(engine)
    yield engine
    engine.close()


def step(engine: ScriptedEngine) -> None:
    engine.clock.now_s += SLOW_STEP_S - STEP_S
    engine.step()


def steps_until_scheduled(engine: ScriptedEngine, request_id: str, at_most: int) -> int | None:
    for count in range(at_most):
        step(engine)
        if request_id in engine.schedule[-1]:
            return count
    return None


def preempted(engine: ScriptedEngine) -> int:
    return int(engine.scheduler._meter.tallies["bulk"].preempted)


def test_an_urgent_request_gets_a_slot_at_half_its_slack_and_all_end_as_asked(
    engine: ScriptedEngine,
) -> None:
    vip = engine.arrive("vip", prompt_tokens=4, max_tokens=2, first_token=9)
    waited_s = (steps_until_scheduled(engine, vip, at_most=20) or 99) * SLOW_STEP_S
    patience_s = PreemptionSettings().patience_ratio * POLICIES["vip"].slo.ttft_s
    assert waited_s <= patience_s + 2 * SLOW_STEP_S
    assert preempted(engine) == 1
    engine.drain()  # Each gets exactly its number of tokens, whoever was preempted.
    engine.check()


def test_the_victim_does_not_take_its_place_back_from_the_urgent(engine: ScriptedEngine) -> None:
    vip = engine.arrive("vip", prompt_tokens=4, max_tokens=8, first_token=9)
    assert steps_until_scheduled(engine, vip, at_most=20) is not None
    for _ in range(6):
        step(engine)
        assert vip in engine.schedule[-1]
    assert preempted(engine) == 1


def test_under_fcfs_nobody_gives_way(engine: ScriptedEngine) -> None:
    engine.publish(POLICIES, Discipline.FCFS)
    vip = engine.arrive("vip", prompt_tokens=4, max_tokens=2, first_token=9)
    assert steps_until_scheduled(engine, vip, at_most=20) is None
    assert preempted(engine) == 0


def test_while_the_engine_is_paused_nobody_gives_way(engine: ScriptedEngine) -> None:
    engine.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    vip = engine.arrive("vip", prompt_tokens=4, max_tokens=2, first_token=9)
    assert steps_until_scheduled(engine, vip, at_most=15) is None
    assert preempted(engine) == 0
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    assert steps_until_scheduled(engine, vip, at_most=3) is not None
    engine.drain()
    engine.check()
