"""How the tokens of a step are spent: the data plane's ``shaping``, for the compiled kernel.

Tests compare every plan. ``e`` is an engine, ``c`` a class, ``r`` a request and ``i`` a
position among the running ones throughout.
"""

import numpy as np

from training.simulator.budget import capped_tokens, share_by_weight
from training.simulator.compiled import compiled
from training.simulator.disciplines import line_up
from training.simulator.memory import known_blocks, known_tokens
from training.simulator.scene import P1, Scene

PACES_INTERVAL_S = 0.02


@compiled
def share_step(scene: Scene, e: int, now_s: float) -> int:
    """Say how many tokens each running prompt may compute, and how many the step may in all."""
    rules, engine = scene.rules[0], scene.engines[e]
    chunk = chunk_tokens(scene, e)
    prefilling, demand = _ask_running(scene, e, chunk, now_s)
    may_admit = engine.waiting > 0 and engine.running < rules.slots
    if prefilling == 0 and not may_admit:
        return rules.step_tokens
    paced = _look_at_paces(scene, e, now_s)
    if not paced and prefilling == 0:
        return rules.step_tokens
    if may_admit:
        _ask_waiting(scene, e, chunk, now_s)
    decoding = engine.running - prefilling
    full = tokens = max(0, rules.step_tokens - decoding)
    if rules.caps:
        for c in range(len(scene.kinds)):
            demand += scene.queues[e, c].prompt_tokens
        tokens = capped_tokens(scene, e, paced, decoding, full, demand, now_s)
    if prefilling > 0:
        _allow(scene, e, chunk, tokens)
    return rules.step_tokens if tokens >= full else rules.step_tokens - full + tokens


@compiled
def chunk_tokens(scene: Scene, e: int) -> int:
    """Of a step's tokens, most that one prompt may take."""
    rules, engine = scene.rules[0], scene.engines[e]
    if rules.chunk_tokens > 0 and engine.running + engine.waiting > 1:
        return rules.chunk_tokens
    return rules.step_tokens


@compiled
def _look_at_paces(scene: Scene, e: int, now_s: float) -> bool:
    """Find each protected class's decode furthest behind, from time to time; is there any?

    What was found last stays when nothing of these classes runs, as in the plugin.
    """
    engine, queues = scene.engines[e], scene.queues[e]
    runs, paced = False, False
    for c in range(len(scene.kinds)):
        runs = runs or (_is_paced(scene, c) and queues[c].running > 0)
        paced = paced or queues[c].due_s < np.inf
    if not runs or now_s < engine.paces_s:
        return runs and paced
    engine.paces_s = now_s + PACES_INTERVAL_S
    return _find_due(scene, e)


@compiled
def _find_due(scene: Scene, e: int) -> bool:
    """Of each protected class, when the latest token of the decode furthest behind was due."""
    queues, paced = scene.queues[e], False
    for c in range(len(scene.kinds)):
        queues[c].due_s = np.inf
    for i in range(scene.engines[e].running):
        r = scene.slots[e, i].request
        c, request = scene.work[r].kind, scene.requests[r]
        if request.generated > 0 and _is_paced(scene, c):
            tokens = request.generated - 1
            due_s = request.first_token_s + tokens * scene.kinds[c].tpot_slo_s
            queues[c].due_s = min(queues[c].due_s, due_s)
            paced = True
    return paced


@compiled
def _is_paced(scene: Scene, c: int) -> bool:
    return scene.kinds[c].tier <= P1 and scene.kinds[c].tpot_slo_s < np.inf


@compiled
def _ask_running(scene: Scene, e: int, chunk: int, now_s: float) -> tuple[int, int]:
    """Sum up by class what running prompts want of a step: how many they are, and all of it."""
    prefilling, wanted, asks = 0, 0, scene.asks[0]
    for c in range(len(scene.kinds)):
        asks[c].wanted, asks[c].weight = 0, 0.0
    for i in range(scene.engines[e].running):
        r = scene.slots[e, i].request
        left = scene.requests[r].target - scene.requests[r].computed
        if left > 0:
            prefilling += 1
            wanted += min(left, chunk)
            _ask(scene, e, r, min(left, chunk), now_s)
    return prefilling, wanted


@compiled
def _ask(scene: Scene, e: int, r: int, tokens: int, now_s: float) -> None:
    """Add to what the request's class wants; the most urgent of its prompts speaks for it."""
    c = scene.work[r].kind
    ask, weight = scene.asks[0, c], scene.queues[e, c].weight
    age_s = max(0.0, now_s - scene.work[r].arrived_s)
    ask.weight = max(ask.weight, weight + weight / scene.kinds[c].ttft_slo_s * age_s)
    ask.wanted += tokens


@compiled
def _ask_waiting(scene: Scene, e: int, chunk: int, now_s: float) -> None:
    """Add what those who wait will take of the step.

    The heads in the order in which they go, as long as slots and blocks are free for them,
    and in slots that are left, as many more as their classes have.
    """
    engine, heads = scene.engines[e], scene.heads
    slots, blocks, able = scene.rules[0].slots - engine.running, engine.free_blocks, 0
    for at in range(line_up(scene, e, now_s)):
        r = heads[at].request
        if slots > 0 and known_blocks(scene, r) <= blocks:
            slots -= 1
            blocks -= known_blocks(scene, r)
            _ask(scene, e, r, min(known_tokens(scene, r), chunk), now_s)
            heads[able].request = r
            able += 1
    for at in range(able):
        r = heads[at].request
        c = scene.work[r].kind
        behind = scene.queues[e, c].waiting - 1
        more = min(behind, slots)
        if more > 0:
            slots -= more
            rest = scene.queues[e, c].prompt_tokens - min(known_tokens(scene, r), chunk)
            scene.asks[0, c].wanted += min(max(0, rest) * more // behind, more * chunk)


@compiled
def _allow(scene: Scene, e: int, chunk: int, tokens: int) -> None:
    """Each class gets its share by weight; within it the earliest admitted goes first."""
    by_class, asks = scene.asks[0], scene.asks[1]
    count = 0
    for c in range(len(scene.kinds)):
        if by_class[c].wanted > 0:
            asks[count].kind, asks[count].weight = c, by_class[c].weight
            asks[count].wanted = by_class[c].wanted
            count += 1
    share_by_weight(asks, count, tokens)
    for at in range(count):
        by_class[asks[at].kind].share = asks[at].share
    # Of one class, the list is in order of admission even where it is sorted by weight.
    for i in range(scene.engines[e].running):
        slot = scene.slots[e, i]
        left = scene.requests[slot.request].target - scene.requests[slot.request].computed
        if left > 0:
            ask = by_class[scene.work[slot.request].kind]
            slot.allowed = min(left, chunk, ask.share)
            ask.share -= slot.allowed
