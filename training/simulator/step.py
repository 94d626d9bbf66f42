"""One step of an engine: vLLM's scheduler, steered by the plugin.

Running requests get their tokens first, in the order of the list, then waiting ones as long
as slots, tokens and KV blocks are there. ``e`` is an engine, ``c`` a class, ``r`` a request
and ``i`` a position among the running ones throughout.
"""

import numpy as np

from training.simulator.budget import step_time_s
from training.simulator.compiled import compiled
from training.simulator.disciplines import leader, learn, pop, prepend, reweigh
from training.simulator.displacement import find_victims
from training.simulator.memory import blocks_of, fits, known_blocks, known_tokens
from training.simulator.scene import FCFS, Float, Measurement, Scene
from training.simulator.shaping import chunk_tokens, share_step

EMPTY_STEP_S = 1e-3
"""A step in which nothing could be scheduled, though something runs or waits."""

_UNLIMITED = np.iinfo(np.int64).max

_FINISHED = int(Measurement.FINISHED)
_VIOLATED = int(Measurement.VIOLATED)
_GENERATED = int(Measurement.GENERATED_TOKENS)
_FIRST_TOKENS = int(Measurement.FIRST_TOKENS)
_TTFT_SUM_S = int(Measurement.TTFT_SUM_S)
_PREEMPTIONS = int(Measurement.PREEMPTIONS)
_RECOMPUTED = int(Measurement.RECOMPUTED_TOKENS)


@compiled
def run_step(scene: Scene, e: int, weights: Float, tick: int, now_s: float) -> None:
    """The step in flight ended at ``now_s``: take its tokens, and begin the next one."""
    engine = scene.engines[e]
    _take_tokens(scene, e, tick, now_s)
    if engine.running + engine.waiting == 0:
        engine.ready_s = np.inf
        return
    reweigh(scene, e, weights)
    engine.steps += 1
    budget, pinned = plan(scene, e, tick, now_s)
    engine.ready_s = now_s + _schedule(scene, e, budget, pinned, tick, now_s)


@compiled
def _take_tokens(scene: Scene, e: int, tick: int, now_s: float) -> None:
    """Give each sequence that the step sampled its token, and let go of those that end."""
    kept = 0
    for i in range(scene.engines[e].running):
        slot = scene.slots[e, i]
        r = slot.request
        if slot.sampled:
            slot.sampled = 0
            if _generate(scene, r, tick, now_s):
                _finish(scene, e, r, tick, now_s)
                continue
        scene.slots[e, kept].request = r
        kept += 1
    scene.engines[e].running = kept


@compiled
def _generate(scene: Scene, r: int, tick: int, now_s: float) -> bool:
    """Give the request its next token; whether that was the last."""
    request, arrival = scene.requests[r], scene.work[r]
    scene.series[tick, arrival.kind, _GENERATED] += 1
    request.generated += 1
    if request.generated == 1:
        request.first_token_s = now_s
        scene.series[tick, arrival.kind, _FIRST_TOKENS] += 1
        scene.series[tick, arrival.kind, _TTFT_SUM_S] += now_s - arrival.arrived_s
    return request.generated >= arrival.output_tokens


@compiled
def _finish(scene: Scene, e: int, r: int, tick: int, now_s: float) -> None:
    request, c = scene.requests[r], scene.work[r].kind
    scene.engines[e].free_blocks += request.blocks
    request.blocks = 0
    request.finished_s = now_s
    scene.queues[e, c].running -= 1
    learn(scene, e, r)
    scene.series[tick, c, _FINISHED] += 1
    if not _met(scene, r):
        scene.series[tick, c, _VIOLATED] += 1


@compiled
def _met(scene: Scene, r: int) -> bool:
    """Whether a finished request met every objective of its class."""
    request, arrival = scene.requests[r], scene.work[r]
    kind = scene.kinds[arrival.kind]
    if request.first_token_s - arrival.arrived_s > kind.ttft_slo_s:
        return False
    if request.finished_s - arrival.arrived_s > kind.e2e_slo_s:
        return False
    decoded_s, tokens = request.finished_s - request.first_token_s, request.generated - 1
    return tokens == 0 or decoded_s / tokens <= kind.tpot_slo_s


@compiled
def plan(scene: Scene, e: int, tick: int, now_s: float) -> tuple[int, int]:
    """Make room by weight where that is due, or share the step's prompt tokens.

    Says how many tokens the step may compute, and which request goes before all others: -1,
    none, or the one for which others were preempted. Each running prompt's slot says how
    many it may.
    """
    rules, engine = scene.rules[0], scene.engines[e]
    if rules.discipline != FCFS:
        most_blocks = -(-rules.step_tokens // rules.block_tokens) + engine.running
        if engine.free_blocks < most_blocks:
            _order_by_weight(scene, e)
    pinned = _displace(scene, e, tick, now_s) if rules.preempts else -1
    for i in range(engine.running):
        scene.slots[e, i].allowed = _UNLIMITED
    if pinned >= 0 or not rules.shares:
        return rules.step_tokens, pinned
    return share_step(scene, e, now_s), -1


@compiled
def _displace(scene: Scene, e: int, tick: int, now_s: float) -> int:
    """Send requests back for a head that cannot wait; that head, -1: none."""
    r, victims = find_victims(scene, e, now_s)
    for at in range(victims):
        victim = scene.slots[e, at].victim
        i = 0
        while scene.slots[e, i].request != victim:
            i += 1
        scene.requests[victim].displaced += 1
        _preempt(scene, e, i, tick)
    return r


@compiled
def _schedule(  # noqa: PLR0917 - numba wants them by position
    scene: Scene, e: int, budget: int, pinned: int, tick: int, now_s: float
) -> float:
    """Spend the step's tokens; how long it takes."""
    engine, rules = scene.engines[e], scene.rules[0]
    chunk = chunk_tokens(scene, e)
    prefill, decoding, chunk_context, victims = 0, 0, 0, 0
    i = 0
    while i < engine.running and budget > 0:
        request = scene.requests[scene.slots[e, i].request]
        computed, left = request.computed, request.target - request.computed
        tokens = min(left, chunk, scene.slots[e, i].allowed) if left > 0 else 1
        tokens = min(tokens, budget)
        if tokens > 0:
            victims += _make_room(scene, e, i, tokens, tick)
            if i >= engine.running:
                break
            _compute(scene, e, i, tokens)
            budget -= tokens
            if left > 0:
                prefill += tokens
                chunk_context += tokens * computed
            else:
                decoding += 1
        i += 1
    while victims == 0 and budget > 0 and engine.waiting > 0 and engine.running < rules.slots:
        r, in_turn = (pinned, False) if pinned >= 0 else leader(scene, e, now_s)
        if known_blocks(scene, r) > engine.free_blocks:
            break
        pop(scene, e, r, in_turn)
        pinned = -1
        tokens = min(known_tokens(scene, r), chunk, budget)
        _admit(scene, e, r, tokens, now_s)
        budget -= tokens
        prefill += tokens
    if prefill + decoding == 0:
        return EMPTY_STEP_S
    return step_time_s(scene, e, prefill, decoding) + rules.chunk_context_s * chunk_context


@compiled
def _make_room(scene: Scene, e: int, i: int, tokens: int, tick: int) -> int:
    """Preempt from the end of the list until the i-th request can grow; how many went.

    If all behind it are not enough, it goes itself.
    """
    engine, request = scene.engines[e], scene.requests[scene.slots[e, i].request]
    if fits(scene, request.blocks, request.computed + tokens):
        return 0
    blocks = blocks_of(scene, request.computed + tokens) - request.blocks
    victims = 0
    while blocks > engine.free_blocks and engine.running > i:
        _preempt(scene, e, engine.running - 1, tick)
        victims += 1
    return victims


@compiled
def _preempt(scene: Scene, e: int, i: int, tick: int) -> None:
    """Send the i-th running request back to the queue; what it computed is lost."""
    r = scene.slots[e, i].request
    request, c = scene.requests[r], scene.work[r].kind
    scene.engines[e].running -= 1
    for at in range(i, scene.engines[e].running):
        scene.slots[e, at].request = scene.slots[e, at + 1].request
    scene.engines[e].free_blocks += request.blocks
    scene.queues[e, c].running -= 1
    scene.series[tick, c, _PREEMPTIONS] += 1
    scene.series[tick, c, _RECOMPUTED] += request.computed
    request.blocks = 0
    request.computed = 0
    request.preemptions += 1
    prepend(scene, e, r)


@compiled
def _admit(scene: Scene, e: int, r: int, tokens: int, now_s: float) -> None:
    """Put a request that left the queue at the end of the list, with its first tokens."""
    engine, request = scene.engines[e], scene.requests[r]
    scene.slots[e, engine.running].request = r
    engine.running += 1
    engine.admissions += 1
    scene.queues[e, scene.work[r].kind].running += 1
    request.admission, request.admitted_s = engine.admissions, now_s
    request.target = known_tokens(scene, r)
    if np.isnan(request.dispatched_s):
        request.dispatched_s = now_s
    _compute(scene, e, engine.running - 1, tokens)


@compiled
def _compute(scene: Scene, e: int, i: int, tokens: int) -> None:
    """The i-th running request computes so many tokens; its blocks are there."""
    slot = scene.slots[e, i]
    request = scene.requests[slot.request]
    request.computed += tokens
    if not fits(scene, request.blocks, request.computed):
        blocks = blocks_of(scene, request.computed)
        scene.engines[e].free_blocks -= blocks - request.blocks
        request.blocks = blocks
    slot.sampled = request.computed >= request.target


@compiled
def _order_by_weight(scene: Scene, e: int) -> None:
    """The heaviest first; equal ones stay in order. A step preempts from the end."""
    for i in range(1, scene.engines[e].running):
        r, at = scene.slots[e, i].request, i
        weight = _weight(scene, e, i)
        while at > 0 and _weight(scene, e, at - 1) < weight:
            scene.slots[e, at].request = scene.slots[e, at - 1].request
            at -= 1
        scene.slots[e, at].request = r


@compiled
def _weight(scene: Scene, e: int, i: int) -> float:
    return scene.queues[e, scene.work[scene.slots[e, i].request].kind].weight
