"""How the prompt tokens of a step are shared, and how many there may be.

The data plane's ``budget``, for the compiled kernel; tests compare every share and cap.
"""

import math
import sys

import numpy as np

from training.simulator.compiled import compiled
from training.simulator.scene import Scene
from training.simulator.state import Records

MAX_OVERHEAD_RATIO = 0.02
WINDOW_S = 60.0
RELAXED = 5.0
LEAST_CHUNK_TOKENS = 16
LEAST_CHUNK_RATIO = 1 / 16

_BUSY_CREDIT_PER_S = 0.5 * MAX_OVERHEAD_RATIO
_RELAXED_CREDIT_PER_S = RELAXED * MAX_OVERHEAD_RATIO
_CREDIT_LIMIT_S = _BUSY_CREDIT_PER_S * WINDOW_S
_MARGIN = 1 - 1e-9
_LARGEST = sys.float_info.max


@compiled
def share_by_weight(asks: Records, count: int, budget_tokens: int) -> None:
    """Give whole tokens in proportion to weights, to none more than it wants.

    Args:
        asks: the first ``count`` have a weight and want tokens, and get a share.
        count: how many ask.
        budget_tokens: to be shared.
    """
    total = 0
    for i in range(count):
        total += asks[i].wanted
        asks[i].share = asks[i].wanted
    if total <= budget_tokens:
        return
    level = _MARGIN * _water_level(asks, count, budget_tokens - count)
    left = budget_tokens
    for i in range(count):
        asks[i].share = math.ceil(min(float(asks[i].wanted), asks[i].weight * level))
        left -= asks[i].share
    for _ in range(left):
        asks[_hungriest(asks, count)].share += 1


@compiled
def _hungriest(asks: Records, count: int) -> int:
    """Of those that want more, the least ``share / weight``; ties: the heavier, the larger."""
    best, best_level = -1, 0.0
    for i in range(count):
        if asks[i].share >= asks[i].wanted:
            continue
        level = asks[i].share / asks[i].weight
        ahead = best < 0 or level < best_level
        if not ahead and level == best_level:
            heavier = asks[i].weight > asks[best].weight
            alike = asks[i].weight == asks[best].weight
            ahead = heavier or (alike and asks[i].wanted > asks[best].wanted)
        if ahead:
            best, best_level = i, level
    return best


@compiled
def _water_level(asks: Records, count: int, budget_tokens: int) -> float:
    """The level L with ``sum of min(wanted, weight L)`` = budget; 0 for no budget."""
    _order_by_level(asks, count)
    left = max(0, budget_tokens)
    for at in range(count):
        # Summed from the end, as differences of very different weights would lose the small.
        weight = 0.0
        for behind in range(count - 1, at - 1, -1):
            weight += asks[asks[behind].order].weight
        ask = asks[asks[at].order]
        level = min(left / weight, _LARGEST)
        if ask.wanted >= ask.weight * level:
            return level
        left -= ask.wanted
    return 0.0


@compiled
def _order_by_level(asks: Records, count: int) -> None:
    """Fill ``order`` by the level at which each has all that it wants."""
    for i in range(count):
        level, at = asks[i].wanted / asks[i].weight, i
        while at > 0:
            before = asks[asks[at - 1].order]
            if before.wanted / before.weight <= level:
                break
            asks[at].order = asks[at - 1].order
            at -= 1
        asks[at].order = i


@compiled
def capped_tokens(  # noqa: PLR0917 - numba wants them by position
    scene: Scene,
    e: int,
    paced: bool,  # noqa: FBT001 - numba wants it by position
    decoding: int,
    full: int,
    demand: int,
    now_s: float,
) -> int:
    """The most prompt tokens of the step that begins now.

    Args:
        scene: all.
        e: the engine.
        paced: whether protected decodes run; ``due_s`` says how they stand.
        decoding: sequences that decode in it.
        full: prompt tokens that it could hold.
        demand: all that running and waiting prompts still want.
        now_s: when it begins.
    """
    engine = scene.engines[e]
    earned_s = engine.credit_per_s * max(0.0, now_s - engine.credited_s)
    engine.credit_s = min(engine.credit_s + earned_s, _CREDIT_LIMIT_S)
    engine.credit_per_s = _RELAXED_CREDIT_PER_S if demand <= full else _BUSY_CREDIT_PER_S
    engine.credited_s = now_s
    wanted = min(demand, full)
    base_s = step_time_s(scene, e, 0, decoding)
    least = max(int(full * LEAST_CHUNK_RATIO), LEAST_CHUNK_TOKENS)
    spare_s = (_allowed_s(scene, e, base_s, now_s) if paced else np.inf) - base_s
    tokens = max(_tokens_within(spare_s, scene.rules[0].prefill_s_per_token, wanted), least)
    if tokens >= wanted:
        return full
    cost_s = base_s * (1 - tokens / wanted)
    if cost_s > engine.credit_s:
        return full
    engine.credit_s -= cost_s
    return tokens


@compiled
def step_time_s(scene: Scene, e: int, prefill_tokens: int, decoding: int) -> float:
    """What a step takes on the KV blocks that are now in use, but for long contexts."""
    rules = scene.rules[0]
    kv_tokens = (rules.kv_blocks - scene.engines[e].free_blocks) * rules.block_tokens
    return (
        rules.base_s
        + rules.prefill_s_per_token * prefill_tokens
        + rules.decode_s_per_sequence * decoding
        + rules.kv_s_per_token * kv_tokens
    )


@compiled
def _tokens_within(spare_s: float, s_per_token: float, most_tokens: int) -> int:
    if spare_s <= 0:
        return 0
    if s_per_token * most_tokens <= spare_s:
        return most_tokens
    return int(spare_s / s_per_token)


@compiled
def _allowed_s(scene: Scene, e: int, floor_s: float, now_s: float) -> float:
    """The longest that a step may take for the protected decodes; infinity: any time.

    Up to when the next token is due, by the objective on the mean time per token, but at
    least one token time and at most four. Objectives below ``floor_s`` gain nothing.
    """
    allowed_s = np.inf
    for c in range(len(scene.kinds)):
        tpot_s, due_s = scene.kinds[c].tpot_slo_s, scene.queues[e, c].due_s
        if due_s < np.inf and floor_s <= tpot_s:
            allowed_s = min(allowed_s, tpot_s + min(max(due_s - now_s, 0.0), 3.0 * tpot_s))
    return allowed_s
