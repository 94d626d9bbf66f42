"""What becomes of requests, as vLLM's own scheduler and the reports have it."""

from collections.abc import Iterator

import pytest
from scripted_engine import STEP_S, ScriptedEngine

from dataplane.scheduler import STATE_INTERVAL_S
from dataplane.state import ClassState
from dataplane.weights import ClassPolicy, Slo

POLICIES = {
    "vip": ClassPolicy("vip", 1.0, 1.0, Slo(0.1)),
    "bulk": ClassPolicy("bulk", 100.0, 1.0, Slo(1000.0)),
}


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine()
    engine.publish(POLICIES)
    yield engine
    engine.close()


def judged(engine: ScriptedEngine, task_class: str) -> tuple[int, int]:
    states: dict[str, ClassState] = {
        state.task_class: state for state in engine.scheduler._state.classes
    }
    state = states[task_class]
    return state.judged, state.violated


def test_failure_17_a_request_that_starves_is_judged_while_it_waits_and_only_once(
    engine: ScriptedEngine,
) -> None:
    slots = engine.size.max_num_seqs
    for number in range(slots):
        engine.arrive("bulk", prompt_tokens=4, max_tokens=40, first_token=number)
    engine.step()
    starving = engine.arrive("vip", prompt_tokens=4, max_tokens=2, first_token=90)
    leaving = engine.arrive("vip", prompt_tokens=4, max_tokens=2, first_token=91)
    engine.clock.now_s += STATE_INTERVAL_S + STEP_S
    engine.step()
    assert starving in engine.live
    assert judged(engine, "vip") == (2, 2)
    assert judged(engine, "bulk") == (0, 0)
    engine.abort([leaving])
    engine.drain()
    assert judged(engine, "vip") == (2, 2)
    assert judged(engine, "bulk") == (slots, 0)


def test_a_request_whose_client_leaves_in_time_is_not_judged(engine: ScriptedEngine) -> None:
    engine.abort([engine.arrive("bulk", prompt_tokens=4, max_tokens=2)])
    engine.step()
    assert judged(engine, "bulk") == (0, 0)
