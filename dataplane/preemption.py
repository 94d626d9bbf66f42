"""Preemption by weight: whether a waiting request takes the place of running ones.

A place is a run slot and the KV blocks for the prompt. A preempted request loses what was
computed for it, so preemption pays in throughput for one request's time to first token,
and each rule here bounds what it pays:

- who: a head of tier P0 or P1 that was never preempted by weight itself, and that would
  miss its TTFT objective if it waited for a place to come free.
- whom: requests that weigh less by at least ``weight_ratio`` and stand in no better tier.
- how often: at most ``max_preemptions`` times for one request, ``min_run_s`` apart.
- how much: recomputed tokens come out of a token bucket.
- never all: of the running requests the heaviest, of these the first admitted, stays.

No two requests preempt each other in turn, whatever the weights do meanwhile: a request
that was preempted by weight preempts nobody. So "has preempted" has no cycle: along a cycle
each request would have preempted before it was preempted, earlier and earlier around it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dataplane.config import PreemptionSettings
from dataplane.weights import LatePolicy, Tier

RETRY_S = 0.1
"""A refused head is looked at again after this time: looking costs O(running)."""


@dataclass(frozen=True, slots=True)
class WaitingHead:
    """The first request of a class's queue.

    Attributes:
        tier: as the breaker sees it.
        first_token_s: estimated time from admission to its first token.
        free_in_s: estimated time until a place comes free by itself; None: not in sight.
        lacks_slot: whether all run slots are taken.
        lacks_blocks: KV blocks for its prompt beyond those that it may take.
        preemptions: times that it was preempted by weight.
    """

    request_id: str
    task_class: str
    weight: float
    tier: Tier
    age_s: float
    ttft_slo_s: float
    first_token_s: float
    free_in_s: float | None
    lacks_slot: bool
    lacks_blocks: int = 0
    late: LatePolicy = LatePolicy.SERVE
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """A request on the engine whose blocks can be taken away now.

    Attributes:
        tier: as the breaker sees it.
        ran_s: since its last admission.
        admission: position in order of admission.
        computed_tokens: what would have to be computed again, at most: a prefix that is still
            cached then is not.
        blocks: KV blocks that would come free, without those that others share.
        preemptions: times that it was preempted by weight.
    """

    request_id: str
    weight: float
    tier: Tier
    ran_s: float
    admission: int
    computed_tokens: int
    blocks: int
    preemptions: int = 0


class Shortage(StrEnum):
    """What a head that preempts was short of."""

    SLOT = "slot"
    MEMORY = "memory"


class Refusal(StrEnum):
    """Why a head that would miss its objective preempts nobody."""

    WEIGHT = "weight"
    """Nothing that runs is light enough, in its tier or a worse one."""
    PROGRESS = "progress"
    """Only the one that always stays would do."""
    COUNT = "count"
    """The light ones have been preempted often enough."""
    QUANTUM = "quantum"
    """The light ones have not run long enough."""
    BUDGET = "budget"
    """It would recompute too much."""
    MEMORY = "memory"
    """All that may go would not free enough blocks."""


@dataclass(frozen=True, slots=True)
class _Refused:
    """A class's head, why it was refused, and when it may ask again."""

    request_id: str
    refusal: Refusal
    retry_s: float


class RecomputeBudget:
    """A token bucket of recomputed tokens, one minute deep.

    In any time of t minutes at most ``(t + 1) * tokens_per_min`` are spent.
    """

    def __init__(self) -> None:
        self.tokens = 0.0
        self._refilled_s: float | None = None

    def refill(self, tokens_per_min: float, now_s: float) -> None:
        """Add what has come in since the last call; the first call fills the bucket."""
        since_s = now_s - 60.0 if self._refilled_s is None else self._refilled_s
        earned = tokens_per_min * (now_s - since_s) / 60.0
        self.tokens = min(tokens_per_min, self.tokens + earned)
        self._refilled_s = now_s

    def spend(self, tokens: float) -> None:
        """Take out what is there."""
        self.tokens -= tokens


class WeightPreemption:
    """Keeps the budget and the counts over decisions. All calls from the scheduler's thread.

    Attributes:
        preempted: requests preempted, by what the head was short of.
        recomputed_tokens: computed for those requests before, at most to be computed again.
        refused: heads refused; one refused for the same reason step after step counts once.
    """

    def __init__(self, settings: PreemptionSettings) -> None:
        self._settings = settings
        self._budget = RecomputeBudget()
        self._refusals: dict[str, _Refused] = {}
        self.preempted = dict.fromkeys(Shortage, 0)
        self.recomputed_tokens = 0
        self.refused = dict.fromkeys(Refusal, 0)

    def considers(self, head: WaitingHead, now_s: float) -> bool:
        """Whether ``victims`` is worth asking: O(1), without looking at what runs."""
        last = self._refusals.get(head.task_class)
        if last and last.request_id == head.request_id and now_s < last.retry_s:
            return False
        return self._settings.enabled and needs_place(head, self._settings)

    def victims(
        self,
        head: WaitingHead,
        running: Sequence[RunningRequest],
        *,
        prefill_tokens_per_s: float,
        now_s: float,
    ) -> tuple[RunningRequest, ...]:
        """Whom to preempt for a head that ``considers`` is true for; the caller then does.

        Args:
            head: admitted in their place, before any of them comes back.
            running: those whose blocks can be taken away now.
            prefill_tokens_per_s: what the engine computes at most, as measured.
            now_s: monotonic.
        """
        self._budget.refill(self._tokens_per_min(prefill_tokens_per_s), now_s)
        choice = choose_victims(head, running, self._settings, self._budget.tokens)
        if isinstance(choice, Refusal):
            self._refuse(head, choice, now_s)
            return ()
        tokens = sum(victim.computed_tokens for victim in choice)
        self._budget.spend(tokens)
        self.recomputed_tokens += tokens
        self.preempted[Shortage.MEMORY if head.lacks_blocks else Shortage.SLOT] += len(choice)
        return choice

    def _tokens_per_min(self, prefill_tokens_per_s: float) -> float:
        absolute = self._settings.recompute_tokens_per_min
        if absolute is not None:
            return absolute
        return self._settings.recompute_share * prefill_tokens_per_s * 60.0

    def _refuse(self, head: WaitingHead, refusal: Refusal, now_s: float) -> None:
        last = self._refusals.get(head.task_class)
        if not last or (last.request_id, last.refusal) != (head.request_id, refusal):
            self.refused[refusal] += 1
        self._refusals[head.task_class] = _Refused(head.request_id, refusal, now_s + RETRY_S)


def needs_place(head: WaitingHead, settings: PreemptionSettings) -> bool:
    """Whether the head is protected, short of a place, and cannot wait for one any longer.

    With slack ``ttft_slo_s - first_token_s`` it can wait as long as a place is expected
    within the rest of its slack, or less than ``patience_ratio`` of the slack is used up:
    estimates of when requests end are too long for all that stop early. One that is too late
    already still needs its place, unless its class is demoted when late.
    """
    slack_s = head.ttft_slo_s - head.first_token_s
    protected = head.tier <= Tier.P1 and head.preemptions == 0
    if not protected or not (head.lacks_slot or head.lacks_blocks > 0) or math.isinf(slack_s):
        return False
    if head.late is LatePolicy.DEMOTE and head.age_s > slack_s:
        return False
    in_time = head.free_in_s is not None and head.age_s + head.free_in_s <= slack_s
    return not in_time and head.age_s >= settings.patience_ratio * slack_s


def choose_victims(
    head: WaitingHead,
    running: Sequence[RunningRequest],
    settings: PreemptionSettings,
    budget_tokens: float,
) -> tuple[RunningRequest, ...] | Refusal:
    """Those to preempt, or why nobody. Pure; O(n log n) in the running requests.

    The lightest go first, then those of the worst tier, then those with the least to
    compute again, then the latest. None is preempted that the others make superfluous.
    """
    stays = max(running, key=lambda one: (one.weight, -one.admission), default=None)
    rules = (
        (
            Refusal.WEIGHT,
            lambda one: head.weight >= settings.weight_ratio * one.weight and head.tier <= one.tier,
        ),
        (Refusal.PROGRESS, lambda one: one is not stays),
        (Refusal.COUNT, lambda one: one.preemptions < settings.max_preemptions),
        (Refusal.QUANTUM, lambda one: one.ran_s >= settings.min_run_s),
        (Refusal.BUDGET, lambda one: one.computed_tokens <= budget_tokens),
    )
    allowed = list(running)
    for refusal, allows in rules:
        allowed = [one for one in allowed if allows(one)]
        if not allowed:
            return refusal
    victims = _fewest(sorted(allowed, key=_preference), head)
    if not victims:
        return Refusal.MEMORY
    if sum(victim.computed_tokens for victim in victims) > budget_tokens:
        return Refusal.BUDGET
    return tuple(victims)


def _preference(one: RunningRequest) -> tuple[float, int, int, int]:
    return one.weight, -one.tier, one.computed_tokens, -one.admission


def _fewest(candidates: Iterable[RunningRequest], head: WaitingHead) -> list[RunningRequest]:
    """The first that give the head its place, without the superfluous; empty: all do not."""
    chosen: list[RunningRequest] = []
    lacking = head.lacks_blocks
    for candidate in candidates:
        chosen.append(candidate)
        lacking -= candidate.blocks
        if lacking <= 0:
            break
    else:
        return []
    for spared in reversed(chosen[:-1]):
        if lacking + spared.blocks <= 0:
            chosen.remove(spared)
            lacking += spared.blocks
    return chosen
