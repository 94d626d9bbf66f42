"""What the control plane publishes, and why: plain records.

A Plan is what a tick wants. Publishing gives it an identity, (epoch, version),
and makes two records of it: the Snapshot for the engines, the Decision for
whoever asks why.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from models.classes import TaskClass


class Mode(StrEnum):
    """What steers the weights, best first."""

    LEARNED = "learned"
    RULE = "rule"
    HOLD = "hold"
    STATIC = "static"


class Discipline(StrEnum):
    """How an engine orders requests."""

    APQ = "apq"
    FCFS = "fcfs"
    GCMU = "gcmu"
    WFQ = "wfq"
    EDF = "edf"
    STRICT = "strict"
    CP_SCORE = "cp_score"


@dataclass(frozen=True, slots=True)
class ClassRule:
    """Puts requests that name no class into one. None: no condition; bounds are inclusive."""

    task_class: str
    min_prompt_tokens: int | None = None
    max_prompt_tokens: int | None = None
    min_max_tokens: int | None = None
    max_max_tokens: int | None = None
    lora: str | None = None
    min_priority: int | None = None
    max_priority: int | None = None
    tenant: str | None = None
    streaming: bool | None = None


@dataclass(frozen=True, slots=True)
class ClassPolicy:
    """One class as the engines see it. Weights are shares: > 0, summing to 1."""

    task_class: TaskClass
    weight: float
    default_weight: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What every engine should run."""

    version: int
    epoch: int
    issued_at_unix_s: float
    ttl_s: float
    mode: Mode
    mode_reason: str
    discipline: Discipline
    classes: tuple[ClassPolicy, ...]
    rules: tuple[ClassRule, ...] = ()
    model_version: str | None = None


@dataclass(frozen=True, slots=True)
class Feature:
    """One model input at the window's last step; None: unknown."""

    name: str
    value: float | None


@dataclass(frozen=True, slots=True)
class ClassDecision:
    """How one class came by its weight; None where that part had no say.

    Attributes:
        dither: what was added to the log of the wanted weight, before the guardrails.
    """

    task_class: str
    weight: float
    rule_share: float | None = None
    residual: float | None = None
    features: tuple[Feature, ...] = ()
    guardrails: tuple[str, ...] = ()
    dither: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a tick decided, not yet published. Classes are in configured order.

    Raises:
        ValueError: a weight is not a positive finite number.
    """

    mode: Mode
    mode_reason: str
    classes: tuple[ClassDecision, ...]
    model_version: str | None = None
    window_end_unix_s: float | None = None

    def __post_init__(self) -> None:
        """A weight that no engine would accept must not get out."""
        for decision in self.classes:
            if not (math.isfinite(decision.weight) and decision.weight > 0):
                raise ValueError(f"weight of {decision.task_class!r} is {decision.weight}")

    @property
    def shares(self) -> tuple[float, ...]:
        """The weights, in configured order."""
        return tuple(decision.weight for decision in self.classes)


@dataclass(frozen=True, slots=True)
class Decision:
    """A published plan."""

    version: int
    epoch: int
    plan: Plan


def unexplained_plan(
    mode: Mode, reason: str, task_classes: Sequence[TaskClass], shares: Sequence[float]
) -> Plan:
    """A plan whose weights come from no window: held or default ones."""
    pairs = zip(task_classes, shares, strict=True)
    return Plan(mode, reason, tuple(ClassDecision(cls.name, float(share)) for cls, share in pairs))
