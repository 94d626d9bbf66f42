"""What a step leaves to those who wait, somebody takes: no running prompt is slowed for less."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from scripted_engine import ScriptedEngine
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import RequestStatus

from benchmarks.stack.inprocess import SchedulerSize
from dataplane.scheduler import TrimtabScheduler
from dataplane.weights import ClassPolicy, Slo

SIZE = SchedulerSize(
    max_num_seqs=32, max_num_batched_tokens=256, max_model_len=4096, blocks=8000, block_size=16
)
POLICIES = {
    "light": ClassPolicy("light", 1.0, 1.0, Slo(5.0)),
    "heavy": ClassPolicy("heavy", 100.0, 1.0, Slo(0.5)),
}

Spoil = Callable[[ScriptedEngine, str, str], None]
"""Takes the engine, the light request that runs and the heavy one that just came."""


def engine_of(kind: type[AsyncScheduler]) -> ScriptedEngine:
    engine = ScriptedEngine(kind=kind, size=SIZE)
    if kind is TrimtabScheduler:
        engine.publish(POLICIES)
    return engine


def pause(engine: ScriptedEngine, _light: str, _heavy: str) -> None:
    engine.scheduler.set_pause_state(PauseState.PAUSED_NEW)


def need_another_adapter(engine: ScriptedEngine, light: str, heavy: str) -> None:
    scheduler = engine.scheduler
    scheduler.lora_config = SimpleNamespace(max_loras=1)
    for number, request_id in enumerate((light, heavy), start=1):
        adapter = SimpleNamespace(lora_int_id=number, lora_name=request_id)
        scheduler.requests[request_id].lora_request = adapter


def wait_for_a_grammar(engine: ScriptedEngine, _light: str, heavy: str) -> None:
    request = engine.scheduler.requests[heavy]
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    request.structured_output_request = SimpleNamespace(grammar=None)


def tokens_beside_a_blocked_head(kind: type[AsyncScheduler], spoil: Spoil) -> list[int]:
    """Of each of some steps in which a long light prompt is read and a heavy one waits."""
    engine = engine_of(kind)
    light = engine.arrive("light", prompt_tokens=3000, max_tokens=1)
    for _ in range(3):
        engine.step()
    heavy = engine.arrive("heavy", prompt_tokens=600, max_tokens=1, first_token=1)
    spoil(engine, light, heavy)
    before = len(engine.schedule)
    for _ in range(8):
        engine.step()
    engine.close()
    return [sum(step.values()) for step in engine.schedule[before:]]


@pytest.mark.parametrize("spoil", [pause, need_another_adapter, wait_for_a_grammar])
def test_nothing_is_left_to_a_head_that_cannot_start(spoil: Spoil) -> None:
    ours = tokens_beside_a_blocked_head(TrimtabScheduler, spoil)
    assert ours == tokens_beside_a_blocked_head(AsyncScheduler, spoil)
    assert ours == [SIZE.max_num_batched_tokens] * 8


def tokens_beside_short_prompts(
    kind: type[AsyncScheduler], *, shared_prefix: bool, every: int
) -> float:
    """A step's mean, while long light prompts are read and short heavy ones keep coming."""
    engine = engine_of(kind)
    engine.arrive("heavy", prompt_tokens=240, max_tokens=1)
    for _ in range(4):
        engine.step()
    for number in range(12):
        engine.arrive("light", prompt_tokens=4000, max_tokens=1, first_token=10 + number)
    before, steps = len(engine.schedule), 60
    for number in range(steps):
        if number % every == 0:
            first_token = 0 if shared_prefix else 1000 + number
            engine.arrive("heavy", prompt_tokens=240, max_tokens=1, first_token=first_token)
        engine.step()
    engine.close()
    return sum(sum(step.values()) for step in engine.schedule[before:]) / steps


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("shared_prefix", [True, False])
def test_a_waiting_prompt_takes_what_the_prefix_cache_does_not_hold_of_it(
    every: int, *, shared_prefix: bool
) -> None:
    ours, stock = (
        tokens_beside_short_prompts(kind, shared_prefix=shared_prefix, every=every)
        for kind in (TrimtabScheduler, AsyncScheduler)
    )
    # A prompt is known in whole blocks, and its age not at all: some tokens of a step stay unused.
    assert ours > 0.95 * stock
