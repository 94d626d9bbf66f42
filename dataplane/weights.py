"""The weights in force, as one immutable table.

A table is built once per snapshot, off the scheduling path, and swapped by reference: a
reader sees the old one or the new one, never a mixture.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Self

from dataplane.rules import ClassRule

LEAST_NUMBER, LARGEST_NUMBER = 1e-12, 1e12
"""Of weights and values. No ratio of two of them can leave what a float holds, whatever tokens
and seconds it is multiplied with: an infinite index would tie, and the next step of arithmetic
on it is no number."""


class Discipline(StrEnum):
    """How requests are ordered."""

    APQ = "apq"
    FCFS = "fcfs"
    GCMU = "gcmu"
    WFQ = "wfq"
    EDF = "edf"
    STRICT = "strict"
    CP_SCORE = "cp_score"


class LatePolicy(StrEnum):
    """What happens to a request that is already past its TTFT objective."""

    SERVE = "serve"
    DEMOTE = "demote"


class Tier(IntEnum):
    """How well a class is protected when memory or time run short; small is protected better.

    REST holds the classes that no operator configured.
    """

    P0 = 0
    P1 = 1
    P2 = 2
    REST = 3


@dataclass(frozen=True, slots=True)
class Slo:
    """Service-level objective, in seconds. None: not an objective; infinity: never late.

    Raises:
        ValueError: an objective is not a positive number.
    """

    ttft_s: float
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is no duration."""
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name} must be a positive number of seconds, got {seconds}")


@dataclass(frozen=True, slots=True)
class ClassPolicy:
    """How one class is treated.

    Attributes:
        weight: in force; only ratios between classes matter, larger is more urgent.
        default_weight: the neutral weight, in force after the TTL.
        value: worth of one request that meets its SLO; only ratios matter.
        max_wait_s: a request that waited longer goes first; None: no bound.
        gain_per_s: ``weight / slo.ttft_s``, the slope of the class's index in its age.
        terms: all that says when a request is late or overdue, and what follows.

    Raises:
        ValueError: a number is outside its range.
    """

    task_class: str
    weight: float
    default_weight: float
    slo: Slo
    value: float = 1.0
    late: LatePolicy = LatePolicy.SERVE
    max_wait_s: float | None = None
    tier: Tier = Tier.P1
    gain_per_s: float = field(init=False)
    terms: tuple[float, LatePolicy, float | None] = field(init=False)

    def __post_init__(self) -> None:
        """Refuse numbers outside their range; derive what the hot path asks for."""
        for name in ("weight", "default_weight", "value"):
            value = getattr(self, name)
            if not LEAST_NUMBER <= value <= LARGEST_NUMBER:
                raise ValueError(
                    f"{name} must be positive, from {LEAST_NUMBER:g} to {LARGEST_NUMBER:g}, "
                    f"got {value}"
                )
        if self.max_wait_s is not None and not self.max_wait_s > 0:
            raise ValueError(f"max_wait_s must be positive, got {self.max_wait_s}")
        gain_per_s = self.weight / self.slo.ttft_s
        if not math.isfinite(gain_per_s):
            raise ValueError(f"weight {self.weight} over ttft_s {self.slo.ttft_s} is too large")
        object.__setattr__(self, "gain_per_s", gain_per_s)
        object.__setattr__(self, "terms", (self.slo.ttft_s, self.late, self.max_wait_s))


@dataclass(frozen=True, slots=True)
class WeightTable:
    """One snapshot, ready for use.

    Attributes:
        ttl_s: how long after its arrival the snapshot may be used.
        mode: what steered the weights, in the control plane's words.
        received_at_s: arrival on this process's monotonic clock; None: no snapshot yet.
        neutral: whether default weights are in force in place of the snapshot's.
        unconfigured: the policy of every class that the snapshot does not name: the least
            weight and the most patient objective there is, so that inventing a class name
            gains a client nothing.
        paced: the TPOT objectives in seconds of the protected classes (P0, P1) with one.
    """

    epoch: int
    version: int
    ttl_s: float
    mode: str
    discipline: Discipline
    policies: Mapping[str, ClassPolicy]
    rules: tuple[ClassRule, ...] = ()
    received_at_s: float | None = None
    neutral: bool = False
    unconfigured: ClassPolicy = field(init=False)
    paced: Mapping[str, float] = field(init=False)

    def __post_init__(self) -> None:
        """Close the mapping, and derive what every step asks for."""
        policies = MappingProxyType(dict(self.policies))
        object.__setattr__(self, "policies", policies)
        object.__setattr__(self, "unconfigured", _unconfigured(policies))
        object.__setattr__(self, "paced", MappingProxyType(_paced(policies)))

    @classmethod
    def initial(cls) -> Self:
        """What is in force before the first snapshot: stock vLLM's order, no objective."""
        return cls(
            epoch=0,
            version=0,
            ttl_s=math.inf,
            mode="none",
            discipline=Discipline.FCFS,
            policies={},
            neutral=True,
        )

    def policy(self, task_class: str) -> ClassPolicy:
        """The class's policy; ``unconfigured`` for a class that the snapshot does not name."""
        return self.policies.get(task_class, self.unconfigured)

    def neutralised(self) -> Self:
        """The same table with each class's default weight in force."""
        defaults = {
            name: replace(policy, weight=policy.default_weight)
            for name, policy in self.policies.items()
        }
        return replace(self, policies=defaults, neutral=True)

    def newer_than(self, other: Self) -> bool:
        """Whether this snapshot succeeds ``other``: by epoch, then by version."""
        return (self.epoch, self.version) > (other.epoch, other.version)

    def age_s(self, now_s: float) -> float | None:
        """Seconds since the snapshot arrived; None before the first."""
        return None if self.received_at_s is None else now_s - self.received_at_s

    def expired(self, now_s: float) -> bool:
        """Whether the TTL is over."""
        age_s = self.age_s(now_s)
        return age_s is not None and age_s > self.ttl_s


def _paced(policies: Mapping[str, ClassPolicy]) -> dict[str, float]:
    return {
        name: policy.slo.tpot_s
        for name, policy in policies.items()
        if policy.slo.tpot_s is not None and policy.tier <= Tier.P1
    }


def _unconfigured(policies: Mapping[str, ClassPolicy]) -> ClassPolicy:
    weight = min((policy.weight for policy in policies.values()), default=1.0)
    default_weight = min((policy.default_weight for policy in policies.values()), default=1.0)
    value = min((policy.value for policy in policies.values()), default=1.0)
    ttft_s = max((policy.slo.ttft_s for policy in policies.values()), default=math.inf)
    return ClassPolicy("", weight, default_weight, Slo(ttft_s), value, tier=Tier.REST)
