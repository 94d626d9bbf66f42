"""How the prompt tokens of a step are shared, and how many there may be.

vLLM gives a step's tokens to running requests first, each as many as it wants, so an
arrival waits until the prompts before it are through, and every decode waits for the whole
step. Two decisions undo that: running prompts leave waiting ones their share by weight
(``plan_prefill``), and a step holds only so many prompt tokens that protected decodes keep
their time per output token, as far as that costs next to nothing (``PrefillCap``).
"""

import math
import sys
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import NamedTuple

from dataplane.step_time import StepTimeModel

MAX_OVERHEAD_RATIO = 0.02
WINDOW_S = 60.0
RELAXED = 5.0
"""How much more a cap may be charged where next to nothing of the charge is lost."""

LEAST_CHUNK_TOKENS = 16
LEAST_CHUNK_RATIO = 1 / 16
"""Of a full step: a capped one holds no less than either, so that prompts move on."""

_MARGIN = 1 - 1e-9


class Demand(NamedTuple):
    """What a class asks of a step. Only ratios of weights matter; they are above 0."""

    weight: float
    tokens: int


class RunningPrefill(NamedTuple):
    """A running request whose prompt is not through.

    Attributes:
        tokens: those left to compute.
        admission: position among the running requests in order of admission.
    """

    request_id: str
    task_class: str
    weight: float
    tokens: int
    admission: int


class WaitingPrompts(NamedTuple):
    """What requests of a class that this step could admit would compute in it."""

    task_class: str
    weight: float
    tokens: int


def share_by_weight(demands: Sequence[Demand], budget_tokens: int) -> list[int]:
    """Whole tokens in proportion to weights, to none more than it wants.

    Token after token goes to the demand with the least ``given / weight`` among those that
    want more (the divisor method of Adams): so each gets its first token before any gets a
    second, and a light class always moves. All but the last few tokens are given at once:
    water-filling finds the level ``given / weight`` at which a budget short of one token
    per demand is used up, and rounding up from there stays within the budget. O(n log n).

    Returns:
        The shares, in the order of the demands; their sum is the smaller of the budget and
        all that is wanted.
    """
    if sum(demand.tokens for demand in demands) <= budget_tokens:
        return [demand.tokens for demand in demands]
    level = _MARGIN * _water_level(demands, budget_tokens - len(demands))
    shares = [math.ceil(min(tokens, weight * level)) for weight, tokens in demands]
    hungry = [
        (share / weight, -weight, -tokens, index)
        for index, (share, (weight, tokens)) in enumerate(zip(shares, demands, strict=True))
        if share < tokens
    ]
    heapify(hungry)
    for _ in range(budget_tokens - sum(shares)):
        _, minus_weight, minus_tokens, index = heappop(hungry)
        shares[index] += 1
        if shares[index] < -minus_tokens:
            heappush(hungry, (shares[index] / -minus_weight, minus_weight, minus_tokens, index))
    return shares


def plan_prefill(
    *,
    budget_tokens: int,
    prefills: Sequence[RunningPrefill],
    waiting: Sequence[WaitingPrompts],
) -> dict[str, int]:
    """How many tokens each running prompt may compute in this step.

    Classes share by weight, each by the largest of its prompts'; within a class the earliest
    admitted goes first, and running before waiting. What no running prompt gets is left to
    the waiting ones.

    Args:
        budget_tokens: what the step may spend on prompts.
        prefills: of all classes, in any order.
        waiting: at most one entry per class; nothing when no slot is free.

    Returns:
        Tokens by request id, 0 for those that must let others go first. Work-conserving:
        together with what the waiting want, the budget is used up.
    """
    weights: dict[str, float] = {}
    wanted: dict[str, int] = {}
    asking: list[RunningPrefill | WaitingPrompts] = [*prefills, *waiting]
    for one in asking:
        weights[one.task_class] = max(one.weight, weights.get(one.task_class, 0.0))
        wanted[one.task_class] = wanted.get(one.task_class, 0) + one.tokens
    demands = [Demand(weights[name], tokens) for name, tokens in wanted.items()]
    left = dict(zip(wanted, share_by_weight(demands, budget_tokens), strict=True))
    plan: dict[str, int] = {}
    for prefill in sorted(prefills, key=lambda prefill: prefill.admission):
        tokens = min(prefill.tokens, left[prefill.task_class])
        left[prefill.task_class] -= tokens
        plan[prefill.request_id] = tokens
    return plan


class Pace(NamedTuple):
    """Where a decode stands against its objective for the mean time per output token.

    Attributes:
        tpot_s: the objective.
        ahead_s: how long from now its latest token was due at the latest; negative: that
            time has passed.
    """

    tpot_s: float
    ahead_s: float = 0.0

    @property
    def allowed_s(self) -> float:
        """The longest that the next step may take.

        Up to when the next token is due: the objective is on the mean, so a decode that was
        fast can wait; but at most four token times, or a reader would see the stream stall.
        One that is behind falls back no further.
        """
        return self.tpot_s + min(max(self.ahead_s, 0.0), 3.0 * self.tpot_s)


class PrefillCap:
    """How many prompt tokens a step may hold so that protected decodes keep their pace.

    A smaller step spreads what a step costs anyway (``base_s``, what it takes without any
    prompt) over fewer prompt tokens: with p of P tokens, ``base_s (1 - p / P)`` of its time
    is extra. That time is paid from a credit, and when the credit does not suffice the step
    is a full one, whatever the objectives ask for. The credit grows

    - while prompts queue up, by half of ``max_overhead_ratio`` per second. Its limit is what
      comes together like that in ``window_s``, so in any interval of at least ``window_s``
      the extra time, and with it the loss of tokens per second, is at most
      ``max_overhead_ratio`` of the interval;
    - while each step could take all the prompts that there are, ``RELAXED`` times
      ``max_overhead_ratio`` per second. What one step holds back then goes into steps that
      run anyway, for the decodes: nearly all that is paid is not lost.

    Attributes:
        capped_steps: steps that held less than they could have.
        withheld_tokens: by how much less, in all.
    """

    def __init__(
        self, max_overhead_ratio: float = MAX_OVERHEAD_RATIO, window_s: float = WINDOW_S
    ) -> None:
        self._busy_credit_per_s = 0.5 * max_overhead_ratio
        self._relaxed_credit_per_s = RELAXED * max_overhead_ratio
        self._credit_limit_s = self._busy_credit_per_s * window_s
        self._credit_s = 0.0
        self._credit_per_s = 0.0
        self._seen_s = 0.0
        self.capped_steps = 0
        self.withheld_tokens = 0

    def tokens(
        self,
        *,
        model: StepTimeModel | None,
        paces: Iterable[Pace],
        decoding: int,
        kv_tokens: int,
        full_tokens: int,
        demand_tokens: int,
        now_s: float,
    ) -> int:
        """The most prompt tokens of the step that begins now.

        Args:
            model: None: nothing is known, so nothing is capped.
            paces: of the protected decodes; of each class only the one furthest behind matters.
            decoding: sequences that decode in this step.
            kv_tokens: those that they attend to.
            full_tokens: what the step could spend on prompts.
            demand_tokens: all that running and waiting requests still have to compute of
                their prompts, whether or not this step could admit them; once above
                ``full_tokens``, how much it is does not matter.
            now_s: monotonic.
        """
        self._earn(now_s, relaxed=demand_tokens <= full_tokens)
        if model is None:
            return full_tokens
        wanted = min(demand_tokens, full_tokens)
        base_s = model.time_s(0, decoding, kv_tokens)
        # An objective that even a step without prompts breaks gains nothing from a cap.
        allowed_s = min((p.allowed_s for p in paces if p.tpot_s >= base_s), default=math.inf)
        least = max(int(full_tokens * LEAST_CHUNK_RATIO), LEAST_CHUNK_TOKENS)
        tokens = max(model.prefill_tokens_within(allowed_s, decoding, kv_tokens, wanted), least)
        if tokens >= wanted:
            return full_tokens
        cost_s = base_s * (1 - tokens / wanted)
        if cost_s > self._credit_s:
            return full_tokens
        self._credit_s -= cost_s
        self.capped_steps += 1
        self.withheld_tokens += wanted - tokens
        return tokens

    def _earn(self, now_s: float, *, relaxed: bool) -> None:
        """Credit the time since the last step with prompts, at the rate of what it left."""
        earned_s = self._credit_per_s * max(0.0, now_s - self._seen_s)
        self._credit_s = min(self._credit_s + earned_s, self._credit_limit_s)
        self._credit_per_s = self._relaxed_credit_per_s if relaxed else self._busy_credit_per_s
        self._seen_s = now_s


def _water_level(demands: Sequence[Demand], budget_tokens: int) -> float:
    """The level L with ``sum of min(tokens, weight L)`` = budget; 0 for no budget.

    More must be wanted than the budget has.
    """
    by_level = sorted(demands, key=lambda demand: demand.tokens / demand.weight)
    # Summed from the end: differences of weights of very different size would lose the small.
    weights = [*accumulate(demand.weight for demand in reversed(by_level))]
    left = max(0, budget_tokens)
    for demand, weight in zip(by_level, reversed(weights), strict=True):
        level = min(left / weight, sys.float_info.max)
        if demand.tokens >= demand.weight * level:
            return level
        left -= demand.tokens
    return 0.0
