"""Preemption by weight: whether a waiting request takes the place of running ones.

The data plane's ``preemption`` and ``displacement``, for the compiled kernel; tests compare
every decision. ``e`` is an engine, ``c`` a class, ``r`` a request and ``i`` a position among
the running ones throughout.
"""

import numpy as np

from training.simulator.budget import step_time_s
from training.simulator.compiled import compiled
from training.simulator.disciplines import line_up
from training.simulator.memory import known_blocks
from training.simulator.scene import P1, Scene

LOOK_EVERY_S = 0.02
AFTER_REFUSAL_S = 0.1


@compiled
def find_victims(scene: Scene, e: int, now_s: float) -> tuple[int, int]:
    """The heaviest head that cannot wait and finds a place, -1 for none, and how many give way.

    The victims are left in the slots' ``victim``, in the order in which they go. At most one
    search among the running requests: for a lighter head fewer of them would do. The plugin
    also remembers for a while which head was refused, but not for longer than it looks at none.
    """
    engine = scene.engines[e]
    if engine.waiting == 0 or now_s < engine.look_s or _roomy(scene, e):
        return -1, 0
    engine.look_s = now_s + LOOK_EVERY_S
    for at in range(_press(scene, e, now_s)):
        r = scene.heads[at].request
        if _needs_place(scene, e, r, now_s):
            victims = _choose(scene, e, r, now_s)
            if victims > 0:
                return r, victims
            engine.look_s = now_s + AFTER_REFUSAL_S
            break
    return -1, 0


@compiled
def _roomy(scene: Scene, e: int) -> bool:
    """Whether whoever may go next finds a slot, and memory for the longest prompt."""
    rules, engine = scene.rules[0], scene.engines[e]
    return engine.running < rules.slots and engine.free_blocks >= rules.longest_blocks


@compiled
def _press(scene: Scene, e: int, now_s: float) -> int:
    """Leave in ``heads`` those that have waited for long, the heaviest first; how many."""
    heads, count = scene.heads, 0
    for i in range(line_up(scene, e, now_s)):
        r = heads[i].request
        c = scene.work[r].kind
        protected = scene.kinds[c].tier <= P1 and scene.requests[r].displaced == 0
        if not protected or not _waited(scene, c, r, _first_token_s(scene, e, r), now_s):
            continue
        at, weight = count, scene.queues[e, c].weight
        while at > 0 and heads[at - 1].weight < weight:
            heads[at].request, heads[at].weight = heads[at - 1].request, heads[at - 1].weight
            at -= 1
        heads[at].request, heads[at].weight = r, weight
        count += 1
    return count


@compiled
def _waited(scene: Scene, c: int, r: int, first_token_s: float, now_s: float) -> bool:
    """Whether the request has used up its patience."""
    slack_s = scene.kinds[c].ttft_slo_s - first_token_s
    age_s = now_s - scene.work[r].arrived_s
    return slack_s < np.inf and age_s >= scene.rules[0].patience_ratio * slack_s


@compiled
def _first_token_s(scene: Scene, e: int, r: int) -> float:
    """From admission to the first token: full steps until the prompt is through."""
    rules, prompt_tokens = scene.rules[0], scene.work[r].prompt_tokens
    steps = -(-prompt_tokens // rules.step_tokens)
    step_s = step_time_s(scene, e, 0, scene.engines[e].running)
    return rules.prefill_s_per_token * prompt_tokens + steps * step_s


@compiled
def _needs_place(scene: Scene, e: int, r: int, now_s: float) -> bool:
    """Whether a head that has waited is short of a place, and none will come free in time."""
    engine, kind = scene.engines[e], scene.kinds[scene.work[r].kind]
    if engine.running < scene.rules[0].slots and _lacking_blocks(scene, e, r) == 0:
        return False
    slack_s = kind.ttft_slo_s - _first_token_s(scene, e, r)
    age_s = now_s - scene.work[r].arrived_s
    if kind.demotes and age_s > slack_s:
        return False
    return age_s + _free_in_s(scene, e) > slack_s


@compiled
def _free_in_s(scene: Scene, e: int) -> float:
    """When the next running request ends at the latest; infinity: not in sight."""
    if not scene.rules[0].declares_output or scene.engines[e].running == 0:
        return np.inf
    least = np.iinfo(np.int64).max
    for i in range(scene.engines[e].running):
        r = scene.slots[e, i].request
        least = min(least, scene.work[r].output_tokens - scene.requests[r].generated)
    return least * step_time_s(scene, e, 0, scene.engines[e].running)


@compiled
def _lacking_blocks(scene: Scene, e: int, r: int) -> int:
    return max(0, known_blocks(scene, r) - scene.engines[e].free_blocks)


@compiled
def _choose(scene: Scene, e: int, r: int, now_s: float) -> int:
    """Choose those that give way, and pay for what they will compute again; how many, or 0.

    The lightest go first, then those of the worst tier, then those with the least to compute
    again, then the latest; none that the others make superfluous.
    """
    engine, slots, c = scene.engines[e], scene.slots[e], scene.work[r].kind
    budget = _recompute_budget(scene, e, now_s)
    lacking, count = _lacking_blocks(scene, e, r), 0
    for i in range(engine.running):
        slots[i].allowed = _may_go(scene, e, c, i, budget, now_s)
    while count == 0 or lacking > 0:
        i = _preferred(scene, e)
        if i < 0:
            return 0
        slots[i].allowed = 0
        slots[count].victim = slots[i].request
        lacking -= scene.requests[slots[i].request].blocks
        count += 1
    count = _spare(scene, e, lacking, count)
    tokens = 0
    for at in range(count):
        tokens += scene.requests[slots[at].victim].computed
    if tokens > budget:
        return 0
    engine.recompute_tokens -= tokens
    return count


@compiled
def _recompute_budget(scene: Scene, e: int, now_s: float) -> float:
    """A token bucket, one minute deep, full at first."""
    engine, per_min = scene.engines[e], scene.rules[0].recompute_tokens_per_min
    since_s = now_s - 60.0 if np.isnan(engine.refilled_s) else engine.refilled_s
    earned = per_min * (now_s - since_s) / 60.0
    engine.recompute_tokens = min(per_min, engine.recompute_tokens + earned)
    engine.refilled_s = now_s
    return engine.recompute_tokens


@compiled
def _may_go(  # noqa: PLR0917 - numba wants them by position
    scene: Scene, e: int, c: int, i: int, budget: float, now_s: float
) -> bool:
    """Whether the i-th running request may give way to a head of this class."""
    rules, r = scene.rules[0], scene.slots[e, i].request
    request, own = scene.requests[r], scene.work[r].kind
    lighter = scene.queues[e, c].weight >= rules.weight_ratio * scene.queues[e, own].weight
    if not lighter or scene.kinds[c].tier > scene.kinds[own].tier or _stays(scene, e, i):
        return False
    often = request.displaced >= rules.max_preemptions
    briefly = now_s - request.admitted_s < rules.min_run_s
    return not often and not briefly and request.computed <= budget


@compiled
def _stays(scene: Scene, e: int, i: int) -> bool:
    """Whether it is the heaviest, of these the first admitted: progress is guaranteed."""
    own = scene.slots[e, i].request
    weight = scene.queues[e, scene.work[own].kind].weight
    for at in range(scene.engines[e].running):
        r = scene.slots[e, at].request
        other = scene.queues[e, scene.work[r].kind].weight
        earlier = scene.requests[r].admission < scene.requests[own].admission
        if other > weight or (other == weight and earlier):
            return False
    return True


@compiled
def _preferred(scene: Scene, e: int) -> int:
    """Of those that may go, the one that goes first; -1: none may."""
    best = -1
    for i in range(scene.engines[e].running):
        if scene.slots[e, i].allowed and (best < 0 or _before(scene, e, i, best)):
            best = i
    return best


@compiled
def _before(scene: Scene, e: int, i: int, other: int) -> bool:
    one, two = scene.slots[e, i].request, scene.slots[e, other].request
    kind, other_kind = scene.work[one].kind, scene.work[two].kind
    weight, other_weight = scene.queues[e, kind].weight, scene.queues[e, other_kind].weight
    if weight != other_weight:
        return weight < other_weight
    if scene.kinds[kind].tier != scene.kinds[other_kind].tier:
        return scene.kinds[kind].tier > scene.kinds[other_kind].tier
    if scene.requests[one].computed != scene.requests[two].computed:
        return scene.requests[one].computed < scene.requests[two].computed
    return scene.requests[one].admission > scene.requests[two].admission


@compiled
def _spare(scene: Scene, e: int, lacking: int, count: int) -> int:
    """Take those off the list that are not needed, the last but one first; how many remain."""
    slots = scene.slots[e]
    for at in range(count - 2, -1, -1):
        blocks = scene.requests[slots[at].victim].blocks
        if lacking + blocks <= 0:
            lacking += blocks
            for behind in range(at, count - 1):
                slots[behind].victim = slots[behind + 1].victim
            count -= 1
    return count
