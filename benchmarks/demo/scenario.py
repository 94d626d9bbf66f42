"""The demo's classes, traffic and load."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.plan import Arrival, Burst, LoadShape, TrafficClass, poisson_arrivals
from models.classes import LatePolicy, Slo, TaskClass, Tier

CLASSES = (
    TaskClass("vip", Slo(ttft_s=1.5), value=10.0, max_wait_s=30.0, tier=Tier.P0),
    TaskClass("free", Slo(ttft_s=4.0), value=2.0, late=LatePolicy.DEMOTE, max_wait_s=60.0),
    TaskClass("long", Slo(ttft_s=10.0), value=3.0, late=LatePolicy.DEMOTE, max_wait_s=60.0),
    TaskClass(
        "batch", Slo(ttft_s=20.0), value=1.0, late=LatePolicy.DEMOTE, max_wait_s=60.0, tier=Tier.P2
    ),
)

TRAFFIC: Mapping[str, TrafficClass] = {
    "vip": TrafficClass(share=0.25, prompt_tokens=(40, 120), output_tokens=(8, 12)),
    "free": TrafficClass(share=0.40, prompt_tokens=(60, 200), output_tokens=(8, 16)),
    "long": TrafficClass(share=0.15, prompt_tokens=(600, 1000), output_tokens=(4, 8)),
    "batch": TrafficClass(share=0.20, prompt_tokens=(150, 300), output_tokens=(16, 24)),
}

BLOCKS = 4
_STEADY_LOAD = 0.7
_BURST_LOAD = 1.5
_BURST_STRETCH = (0.1, 0.4)
"""Early enough for the backlog to be gone when the block ends. Otherwise its last few
answers, at a fraction of a full batch, would count as lost throughput."""


@dataclass(frozen=True, slots=True)
class Block:
    """One stretch of the run: which policy, on which arrivals.

    Blocks that share ``pair`` replay the same arrivals.
    """

    policy: str
    pair: int
    plan: tuple[Arrival, ...]


def blocks(duration_s: float, *, capacity_requests_per_s: float, seed: int) -> tuple[Block, ...]:
    """Split ``duration_s`` of traffic into blocks of fcfs and learned in ABBA order.

    ABBA, so that a machine that slowly gets faster or slower favours neither.
    """
    block_s = duration_s / BLOCKS
    start, end = _BURST_STRETCH
    shape = LoadShape(
        duration_s=block_s,
        steady_load=_STEADY_LOAD,
        bursts=(Burst(start * block_s, end * block_s, _BURST_LOAD),),
    )
    plans = [
        poisson_arrivals(
            TRAFFIC, shape, capacity_requests_per_s=capacity_requests_per_s, seed=seed + pair
        )
        for pair in range(BLOCKS // 2)
    ]
    order = [
        (policy, pair)
        for pair in range(BLOCKS // 2)
        for policy in (("fcfs", "learned") if pair % 2 == 0 else ("learned", "fcfs"))
    ]
    return tuple(Block(policy, pair, plans[pair]) for policy, pair in order)
