"""Heads that wait and requests that run, as tests of preemption by weight want them."""

from dataclasses import replace
from typing import Any

from dataplane.config import PreemptionSettings
from dataplane.preemption import Refusal, RunningRequest, WaitingHead
from dataplane.weights import Tier

# A share at which recomputing happens often in a short test; the default is lower.
SETTINGS = PreemptionSettings(recompute_share=0.05)


def head(**fields: Any) -> WaitingHead:
    """A VIP at the end of its patience: 1 s objective, all slots taken, no end in sight."""
    urgent = WaitingHead("vip-1", "vip", 6.0, Tier.P0, 0.5, 1.0, 0.2, None, lacks_slot=True)
    return replace(urgent, **fields)


def runs(name: str = "long-1", **fields: Any) -> RunningRequest:
    """A light request in the middle of its work."""
    return replace(RunningRequest(name, 1.0, Tier.P2, 10.0, 1, 500, 40), **fields)


STAYS = runs("stays", weight=100.0, tier=Tier.P0, admission=0)
"""The heaviest and first: the one that preemption never touches."""


def names(choice: tuple[RunningRequest, ...] | Refusal) -> list[str]:
    assert not isinstance(choice, Refusal), choice
    return [victim.request_id for victim in choice]
