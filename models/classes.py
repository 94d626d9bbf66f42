"""What an operator says of a task class."""

import math
from dataclasses import dataclass
from enum import StrEnum

LEAST_VALUE, LARGEST_VALUE = 1e-12, 1e12
"""Engines take no others."""


class LatePolicy(StrEnum):
    """What happens to a request that is already past its SLO."""

    SERVE = "serve"
    """It keeps its place."""
    DEMOTE = "demote"
    """It falls behind every request that can still make its SLO."""


class Tier(StrEnum):
    """How well a class is protected when an engine's memory or time run short."""

    P0 = "p0"
    """Never held back."""
    P1 = "p1"
    P2 = "p2"
    """The first to be held back."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Service-level objective, in seconds. None: not an objective.

    Raises:
        ValueError: an objective is not a positive finite number.
    """

    ttft_s: float
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is no duration."""
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            seconds = getattr(self, name)
            if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
                raise ValueError(f"{name} must be a positive number of seconds, got {seconds}")


@dataclass(frozen=True, slots=True)
class TaskClass:
    """One task class as configured: its name, objective and worth.

    Attributes:
        value: worth of one request that meets its SLO; > 0; only ratios matter.
        floor: least share of the total weight, in [0, 1).
        max_wait_s: a request that waited longer goes first; None: no bound.

    Raises:
        ValueError: a number is outside its range.
    """

    name: str
    slo: Slo
    value: float = 1.0
    floor: float = 0.0
    late: LatePolicy = LatePolicy.SERVE
    max_wait_s: float | None = None
    tier: Tier = Tier.P1

    def __post_init__(self) -> None:
        """Refuse numbers outside their range."""
        if not LEAST_VALUE <= self.value <= LARGEST_VALUE:
            raise ValueError(
                f"value of class {self.name!r} must be positive, from {LEAST_VALUE:g} to "
                f"{LARGEST_VALUE:g}, got {self.value}"
            )
        if not 0 <= self.floor < 1:
            raise ValueError(f"floor of class {self.name!r} must be in [0, 1), got {self.floor}")
        if self.max_wait_s is not None and not self.max_wait_s > 0:
            raise ValueError(
                f"max_wait_s of class {self.name!r} must be positive, got {self.max_wait_s}"
            )
