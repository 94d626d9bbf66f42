"""Who asks: the classes of a workload, how often each asks and for how much.

Shapes: N requests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.classes import LatePolicy, Slo, TaskClass, Tier
from models.rule import RULE
from training.simulator.course import Course
from training.simulator.lengths import Independent, Lognormal, RequestLengths, whole_tokens
from training.simulator.workload import Workload


@dataclass(frozen=True, slots=True)
class ClassTraffic:
    """How one class asks.

    Attributes:
        share: of all requests; only ratios matter.
        lengths: of prompts and answers.

    Raises:
        ValueError: the share is not positive.
    """

    task_class: TaskClass
    share: float
    lengths: RequestLengths

    def __post_init__(self) -> None:
        """Refuse what is no share."""
        if not (math.isfinite(self.share) and self.share > 0):
            raise ValueError(f"the share of {self.task_class.name!r} must be positive")

    @property
    def work_tokens(self) -> float:
        """Mean work of a request, in prompt tokens, as the rule counts it."""
        prompt_tokens, output_tokens = self.lengths.mean_tokens
        return prompt_tokens + RULE.generated_token_cost * output_tokens


def shares(traffic: Sequence[ClassTraffic]) -> NDArray[np.float64]:
    """Of each class, summing to 1."""
    raw = np.array([kind.share for kind in traffic])
    return np.asarray(raw / raw.sum(), dtype=np.float64)


def arrivals_s(
    rate_per_s: float, course: Course, duration_s: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """[N] of an inhomogeneous Poisson process with rate ``rate_per_s * course``, ascending.

    By thinning: P. A. W. Lewis and G. S. Shedler, "Simulation of nonhomogeneous Poisson processes
    by thinning", Naval Research Logistics Quarterly 26 (1979).
    """
    candidates = rng.poisson(rate_per_s * course.peak * duration_s)
    at_s = np.sort(rng.uniform(0.0, duration_s, candidates))
    kept = rng.random(candidates) * course.peak < course.at(at_s)
    return np.asarray(at_s[kept], dtype=np.float64)


def simultaneous(traffic: Sequence[ClassTraffic], count: int, seed: int) -> Workload:
    """About ``count`` requests of the mix that all arrive at once, in random order.

    Each class has its exact share: what an engine makes of them per second is its capacity.
    """
    rng = np.random.default_rng(seed)
    counts = np.maximum(1, np.rint(count * shares(traffic)).astype(int))
    drawn = [kind.lengths.draw(rng, number) for kind, number in zip(traffic, counts, strict=True)]
    order = rng.permutation(counts.sum())
    return Workload(
        arrival_s=np.zeros(len(order)),
        class_index=np.repeat(np.arange(len(traffic)), counts)[order],
        prompt_tokens=whole_tokens(np.concatenate([prompts for prompts, _ in drawn]))[order],
        output_tokens=whole_tokens(np.concatenate([outputs for _, outputs in drawn]))[order],
        classes=tuple(kind.task_class for kind in traffic),
    )


REFERENCE = (
    ClassTraffic(
        TaskClass("vip", Slo(ttft_s=1.5, tpot_s=0.2), value=10.0, max_wait_s=30.0, tier=Tier.P0),
        share=0.25,
        lengths=Independent(Lognormal(80, 0.4, 512), Lognormal(10, 0.3, 64)),
    ),
    ClassTraffic(
        TaskClass("free", Slo(ttft_s=4.0), value=2.0, late=LatePolicy.DEMOTE, max_wait_s=60.0),
        share=0.40,
        lengths=Independent(Lognormal(130, 0.7, 1024), Lognormal(12, 0.4, 96)),
    ),
    ClassTraffic(
        TaskClass("long", Slo(ttft_s=10.0), value=3.0, late=LatePolicy.DEMOTE, max_wait_s=60.0),
        share=0.15,
        lengths=Independent(Lognormal(800, 0.4, 2048), Lognormal(6, 0.3, 32)),
    ),
    ClassTraffic(
        TaskClass(
            "batch",
            Slo(ttft_s=20.0),
            value=1.0,
            late=LatePolicy.DEMOTE,
            max_wait_s=60.0,
            tier=Tier.P2,
        ),
        share=0.20,
        lengths=Independent(Lognormal(220, 0.5, 1024), Lognormal(20, 0.4, 128)),
    ),
)
"""Four classes of which each is another's trouble: the reference workload. They are the demo's,
with lengths of some spread, and an objective for the pace of what VIPs read: five tokens a second,
twice what a full step of the reference engine takes. At 0.1 s policies missed it by a hair, or
did not, as chance would have it."""
