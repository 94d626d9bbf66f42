"""An engine whose steps take exactly the time that a model says, to try budgets on.

It spends a step as vLLM does: running requests first, then waiting ones while there are
slots, each prompt as much as it wants or may.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from random import Random

from dataplane.budget import Pace, PrefillCap, RunningPrefill, WaitingPrompts, plan_prefill
from dataplane.step_time import StepTimeModel

WEIGHTS = {"vip": 4.0, "batch": 1.0}


@dataclass(eq=False)
class Request:
    task_class: str
    arrived_s: float
    prompt_tokens: int
    output_tokens: int
    left_tokens: int = 0
    generated: int = 0
    first_token_s: float = 0.0
    last_token_s: float = 0.0

    def __post_init__(self) -> None:
        self.left_tokens = self.prompt_tokens

    @property
    def tpot_s(self) -> float:
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)


@dataclass
class StepEngine:
    """Attributes: cap, shares: None, False: as stock. tpot_s: the vip class's objective."""

    truth: StepTimeModel
    tpot_s: float
    budget_tokens: int = 512
    slots: int = 32
    cap: PrefillCap | None = None
    shares: bool = False
    now_s: float = 0.0
    tokens: int = 0
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)

    def run(
        self,
        arrivals: Iterable[Request],
        until_s: float,
        again: Callable[[float], Request] | None = None,
    ) -> "StepEngine":
        """Serve the arrivals; ``again`` gives what a client sends when one is answered."""
        coming = deque(arrivals)
        while self.now_s < until_s and (coming or self.waiting or self.running):
            if coming and not self.waiting and not self.running:
                self.now_s = max(self.now_s, coming[0].arrived_s)
            while coming and coming[0].arrived_s <= self.now_s:
                self.waiting.append(coming.popleft())
            done = self._step()
            self.finished += done
            if again is not None:
                coming.extend(again(self.now_s) for _ in done)
        return self

    def tokens_per_s(self) -> float:
        return self.tokens / self.now_s

    def attainment_ratio(self) -> float:
        vips = [request for request in self.finished if request.task_class == "vip"]
        return sum(request.tpot_s <= self.tpot_s for request in vips) / len(vips)

    def mean_ttft_s(self) -> float:
        vips = [request for request in self.finished if request.task_class == "vip"]
        return sum(request.first_token_s - request.arrived_s for request in vips) / len(vips)

    def _step(self) -> list[Request]:
        decoding = [request for request in self.running if not request.left_tokens]
        kv_tokens = sum(request.prompt_tokens + request.generated for request in decoding)
        most = self._most_tokens(decoding, kv_tokens)
        computed = self._compute(self._plan(most), most)
        self.now_s += self.truth.time_s(computed, len(decoding), kv_tokens)
        self.tokens += computed
        return self._generate()

    def _most_tokens(self, decoding: list[Request], kv_tokens: int) -> int:
        full = self.budget_tokens - len(decoding)
        if self.cap is None:
            return full
        some = (*self.running, *islice(self.waiting, 100))  # more than a step can take
        demand = sum(request.left_tokens for request in some)
        if not demand:
            return full
        vips = [request for request in decoding if request.task_class == "vip"]
        return self.cap.tokens(
            model=self.truth,
            paces=[
                Pace(
                    self.tpot_s,
                    vip.first_token_s + (vip.generated - 1) * self.tpot_s - self.now_s,
                )
                for vip in vips
            ],
            decoding=len(decoding),
            kv_tokens=kv_tokens,
            full_tokens=full,
            demand_tokens=demand,
            now_s=self.now_s,
        )

    def _plan(self, most: int) -> dict[str, int]:
        if not self.shares:
            return {}
        prefills = [
            RunningPrefill(
                str(id(request)),
                request.task_class,
                WEIGHTS[request.task_class],
                request.left_tokens,
                admission,
            )
            for admission, request in enumerate(self.running)
            if request.left_tokens
        ]
        heads = list(self.waiting)[: self.slots - len(self.running)]
        wanted: dict[str, int] = {}
        for request in heads:
            wanted[request.task_class] = wanted.get(request.task_class, 0) + request.left_tokens
        waiting = [WaitingPrompts(name, WEIGHTS[name], n) for name, n in wanted.items()]
        return plan_prefill(budget_tokens=most, prefills=prefills, waiting=waiting)

    def _compute(self, plan: dict[str, int], most: int) -> int:
        spent = 0
        for request in self.running:
            may = plan.get(str(id(request)), request.left_tokens)
            chunk = min(request.left_tokens, may, most - spent)
            request.left_tokens -= chunk
            spent += chunk
        while self.waiting and len(self.running) < self.slots and spent < most:
            request = self.waiting.popleft()
            self.running.append(request)
            chunk = min(request.left_tokens, most - spent)
            request.left_tokens -= chunk
            spent += chunk
        return spent

    def _generate(self) -> list[Request]:
        for request in self.running:
            if request.left_tokens:
                continue
            request.generated += 1
            request.last_token_s = self.now_s
            if request.generated == 1:
                request.first_token_s = self.now_s
            self.tokens += 1
        done = [r for r in self.running if r.generated == r.output_tokens]
        self.running = [r for r in self.running if r.generated < r.output_tokens]
        return done


def a_request(random: Random, arrived_s: float) -> Request:
    """Seven short vip ones for three long batch ones."""
    if random.random() < 0.3:
        return Request("batch", arrived_s, random.randint(2000, 8000), random.randint(20, 100))
    return Request("vip", arrived_s, random.randint(50, 400), random.randint(50, 200))


def poisson(rate_per_s: float, until_s: float, seed: int) -> list[Request]:
    random, now_s, arrivals = Random(seed), 0.0, []
    while now_s < until_s:
        now_s += random.expovariate(rate_per_s)
        arrivals.append(a_request(random, now_s))
    return arrivals
