"""The data plane's disciplines and class queues, for the compiled kernel.

The definition is the data plane's own (``ordering``, ``lanes`` and ``contest`` there), and
tests compare every decision: the same formulas in the same order of operations, so that
even ties by rounding fall alike. ``e`` is an engine, ``c`` a class and ``r`` a request.
"""

import numpy as np

from models.rule import RULE
from training.simulator.compiled import compiled
from training.simulator.scene import APQ, CP_SCORE, EDF, FCFS, GCMU, STRICT, WFQ, Float, Scene
from training.simulator.state import IN_TIME, LATE, PREEMPTED

GENERATED_TOKEN_COST = RULE.generated_token_cost
MEMORY_REQUESTS = 256.0
CONTEXT_TOKENS = 8192

_RANK_OVERDUE, _RANK_IN_TIME, _RANK_LATE = range(3)
"""The smaller goes first, whatever the index."""


@compiled
def append(scene: Scene, e: int, r: int) -> None:
    """The request arrived at this engine."""
    engine, c = scene.engines[e], scene.work[r].kind
    engine.last_place += 1
    scene.requests[r].place = engine.last_place
    _enter(scene, e, c, r)
    _put_last(scene, e, c, IN_TIME, r)


@compiled
def prepend(scene: Scene, e: int, r: int) -> None:
    """The request was preempted: it goes before its class."""
    engine, c = scene.engines[e], scene.work[r].kind
    scene.requests[r].place = engine.first_place
    engine.first_place -= 1
    _enter(scene, e, c, r)
    lane = scene.lanes[e, c, PREEMPTED]
    scene.requests[r].behind = lane.first
    lane.first = r


@compiled
def pop(scene: Scene, e: int, r: int, in_turn: bool) -> None:  # noqa: FBT001 - numba wants it by position
    """The request, the head of its class, leaves for the engine."""
    c = scene.work[r].kind
    queue = scene.queues[e, c]
    if scene.rules[0].discipline == WFQ:
        _charge(scene, e, c, r, in_turn)
    if scene.lanes[e, c, PREEMPTED].first == r:
        _take_first(scene, e, c, PREEMPTED)
    elif scene.lanes[e, c, IN_TIME].first == r:
        _take_first(scene, e, c, IN_TIME)
    else:
        _take_first(scene, e, c, LATE)
        queue.past_slo -= 1
    queue.waiting -= 1
    queue.prompt_tokens -= scene.work[r].prompt_tokens
    scene.engines[e].waiting -= 1


@compiled
def leader(scene: Scene, e: int, now_s: float) -> tuple[int, bool]:
    """Who goes next, -1 if nothing waits, and whether the discipline's index said so."""
    best, best_rank, best_score, best_place = -1, 0, 0.0, 0
    for c in range(len(scene.kinds)):
        if scene.queues[e, c].waiting == 0:
            continue
        r, rank = head(scene, e, c, now_s)
        if best >= 0 and rank > best_rank:
            continue
        score, place = _score(scene, e, r, rank, now_s), scene.requests[r].place
        if best < 0 or _ahead(rank, score, place, best_rank, best_score, best_place):
            best, best_rank, best_score, best_place = r, rank, score, place
    return best, best_rank == _RANK_IN_TIME


@compiled
def line_up(scene: Scene, e: int, now_s: float) -> int:
    """Fill ``heads`` with the first of each class, in the order in which they go; how many."""
    heads, count = scene.heads, 0
    for c in range(len(scene.kinds)):
        if scene.queues[e, c].waiting == 0:
            continue
        r, rank = head(scene, e, c, now_s)
        score, place = _score(scene, e, r, rank, now_s), scene.requests[r].place
        at = count
        while at > 0 and _ahead(
            rank, score, place, heads[at - 1].rank, heads[at - 1].score, heads[at - 1].place
        ):
            heads[at] = heads[at - 1]
            at -= 1
        heads[at].request, heads[at].rank = r, rank
        heads[at].score, heads[at].place = score, place
        count += 1
    return count


@compiled
def head(scene: Scene, e: int, c: int, now_s: float) -> tuple[int, int]:
    """The class's first request, -1 if none waits, and its rank."""
    turn_late(scene, e, c, now_s)
    kind, work, requests = scene.kinds[c], scene.work, scene.requests
    late, on_time = scene.lanes[e, c, LATE].first, scene.lanes[e, c, PREEMPTED].first
    if on_time < 0:
        on_time = scene.lanes[e, c, IN_TIME].first
    stock = scene.rules[0].discipline == FCFS
    max_wait_s = np.inf if stock else kind.max_wait_s
    rank = late_rank = _RANK_IN_TIME
    if on_time >= 0 and now_s > work[on_time].arrived_s + max_wait_s:
        rank = _RANK_OVERDUE
    if late < 0:
        return on_time, rank
    if kind.demotes and not stock:
        late_rank = _RANK_LATE
    if now_s > work[late].arrived_s + max_wait_s:
        late_rank = _RANK_OVERDUE
    if on_time < 0 or late_rank < rank:
        return late, late_rank
    if late_rank == rank and requests[late].place < requests[on_time].place:
        return late, late_rank
    return on_time, rank


@compiled
def _score(scene: Scene, e: int, r: int, rank: int, now_s: float) -> float:
    """Minus the index of a head: the smallest goes first."""
    c = scene.work[r].kind
    base, slope = -scene.kinds[c].max_wait_s, 1.0
    if rank != _RANK_OVERDUE:
        base, slope = claim(scene, e, c, r)
    return -base - slope * (now_s - scene.work[r].arrived_s)


@compiled
def _ahead(  # noqa: PLR0917 - as above
    rank: int, score: float, place: int, other_rank: int, other_score: float, other_place: int
) -> bool:
    """Whether a head goes before another: by rank, then index, then place."""
    if rank != other_rank:
        return rank < other_rank
    return score < other_score or (score == other_score and place < other_place)


@compiled
def turn_late(scene: Scene, e: int, c: int, now_s: float) -> None:
    """Move the requests that can no longer make their TTFT objective to the late lane."""
    slo_s = scene.kinds[c].ttft_slo_s
    r = scene.lanes[e, c, IN_TIME].first
    while r >= 0 and now_s > scene.work[r].arrived_s + slo_s:
        _take_first(scene, e, c, IN_TIME)
        _put_last(scene, e, c, LATE, r)
        scene.queues[e, c].past_slo += 1
        r = scene.lanes[e, c, IN_TIME].first


@compiled
def claim(scene: Scene, e: int, c: int, r: int) -> tuple[float, float]:
    """Base and slope of the request's index in its age."""
    discipline, kind = scene.rules[0].discipline, scene.kinds[c]
    slo_s, weight = kind.ttft_slo_s, scene.queues[e, c].weight
    base, slope = 0.0, 0.0
    if discipline == APQ:
        slope = weight / slo_s
    elif discipline == GCMU:
        slope = kind.value / expected_work_tokens(scene, e, c, r) / slo_s / slo_s
    elif discipline == WFQ:
        fresh = np.isnan(scene.requests[r].dispatched_s)
        unpaid = expected_work_tokens(scene, e, c, r) if fresh else 0.0
        base = -(scene.queues[e, c].finish_tag + unpaid / weight)
    elif discipline == EDF:
        base = -(scene.work[r].arrived_s + slo_s)
    elif discipline == STRICT:
        base = weight
    elif discipline == CP_SCORE:
        prompt_tokens = scene.work[r].prompt_tokens
        complexity = min(prompt_tokens / CONTEXT_TOKENS, 1.0)
        latency_ms = 1.2 * prompt_tokens + 120.0
        base = 0.4 / latency_ms + 0.3 * weight + 0.2 * complexity
        slope = 0.1
    return base, slope


@compiled
def expected_work_tokens(scene: Scene, e: int, c: int, r: int) -> float:
    """What the plugin believes a waiting request to be."""
    expected = scene.queues[e, c].generation_tokens
    if scene.rules[0].declares_output:
        expected = min(expected, float(scene.work[r].output_tokens))
    return work_tokens(scene.work[r].prompt_tokens, expected)


@compiled
def work_tokens(prompt_tokens: float, generated_tokens: float) -> float:
    """Work of a request in prompt tokens."""
    return max(prompt_tokens + GENERATED_TOKEN_COST * generated_tokens, 1.0)


@compiled
def learn(scene: Scene, e: int, r: int) -> None:
    """The request ended: correct its class's mean, and what it was charged."""
    request = scene.requests[r]
    queue = scene.queues[e, scene.work[r].kind]
    queue.ended = min(queue.ended + 1.0, MEMORY_REQUESTS)
    queue.generation_tokens += (request.generated - queue.generation_tokens) / queue.ended
    if request.charged_tokens > 0.0:
        done = work_tokens(scene.work[r].prompt_tokens, request.generated)
        queue.finish_tag += (done - request.charged_tokens) / queue.weight
        request.charged_tokens = done


@compiled
def reweigh(scene: Scene, e: int, weights: Float) -> None:
    """Put these weights [C] in force; a class stays as many tokens ahead of the fair tag."""
    tag = scene.engines[e].fair_tag
    for c in range(len(weights)):
        queue = scene.queues[e, c]
        if queue.weight > 0.0 and queue.weight != weights[c]:
            queue.finish_tag = tag + (queue.finish_tag - tag) * queue.weight / weights[c]
        queue.weight = weights[c]


@compiled
def oldest_arrival_s(scene: Scene, e: int, c: int) -> float:
    """Of the first of each lane, as the data plane looks; infinity: none waits."""
    oldest_s = np.inf
    for lane in range(3):
        r = scene.lanes[e, c, lane].first
        if r >= 0:
            oldest_s = min(oldest_s, scene.work[r].arrived_s)
    return oldest_s


@compiled
def _charge(scene: Scene, e: int, c: int, r: int, in_turn: bool) -> None:  # noqa: FBT001 - as above
    """Charge the work that is expected of the request, once."""
    engine, queue, request = scene.engines[e], scene.queues[e, c], scene.requests[r]
    if not np.isnan(request.dispatched_s):
        return
    if in_turn:
        engine.fair_tag = max(engine.fair_tag, queue.finish_tag)
    tokens = expected_work_tokens(scene, e, c, r)
    queue.finish_tag += (tokens - request.charged_tokens) / queue.weight
    request.charged_tokens = tokens


@compiled
def _enter(scene: Scene, e: int, c: int, r: int) -> None:
    """Count the request in; a class that begins to wait joins at the engine's fair tag."""
    queue = scene.queues[e, c]
    if queue.waiting == 0:
        queue.finish_tag = max(queue.finish_tag, scene.engines[e].fair_tag)
    queue.waiting += 1
    queue.prompt_tokens += scene.work[r].prompt_tokens
    scene.engines[e].waiting += 1


@compiled
def _take_first(scene: Scene, e: int, c: int, which: int) -> None:
    lane = scene.lanes[e, c, which]
    lane.first = scene.requests[lane.first].behind


@compiled
def _put_last(scene: Scene, e: int, c: int, which: int, r: int) -> None:
    lane = scene.lanes[e, c, which]
    scene.requests[r].behind = -1
    if lane.first < 0:
        lane.first = r
    else:
        scene.requests[lane.last].behind = r
    lane.last = r
