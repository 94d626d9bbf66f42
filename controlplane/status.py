"""What the control plane and its engines say of themselves: plain records."""

from dataclasses import dataclass
from enum import StrEnum

from controlplane.snapshot import Discipline, Mode


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """What waits and runs in one class of one engine."""

    task_class: str
    waiting: int
    running: int
    oldest_wait_s: float


@dataclass(frozen=True, slots=True)
class StepTimeSums:
    """Sufficient statistics of an engine's step-time model, since it started.

    Attributes:
        elapsed_s: sum of the steps' times T.
        gram: sum of ``x x' / T^2`` with x = (1, prefill tokens, decoding sequences, KV
            tokens): the upper triangle by rows, 10 numbers.
        moment: sum of ``x / T``, 4 numbers.
    """

    steps: int
    elapsed_s: float
    gram: tuple[float, ...]
    moment: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """What became of one class's requests since the engine started.

    Attributes:
        judged: served, failed, or seen to wait past the TTFT objective; each counts once.
        violated: of these, all but those that met every objective.
    """

    task_class: str
    judged: int
    violated: int


class BreakerState(StrEnum):
    """State of the breaker inside an engine."""

    CLOSED = "closed"
    DEGRADED = "degraded"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class Report:
    """What an engine sees of itself. step_time is None until it measured a step.

    Attributes:
        preemptions: since the engine started.
        recomputed_tokens: since the engine started.
        counts: of the classes that have any.
    """

    applied_version: int
    applied_epoch: int
    neutral: bool
    kv_usage_ratio: float
    snapshot_age_s: float | None = None
    queues: tuple[QueueDepth, ...] = ()
    step_time: StepTimeSums | None = None
    breaker: BreakerState = BreakerState.CLOSED
    preemptions: int = 0
    recomputed_tokens: int = 0
    counts: tuple[ClassCounts, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One connected engine.

    Attributes:
        acked_version: newest that it took on this stream; 0: none yet.
        last_nack_reason: why it refused the last push; None: it did not.
        last_report: with the counts of all classes so far; None before the first.
        stream: number of the engine's stream: another one after it reconnected.
    """

    engine_id: str
    engine_version: str
    acked_version: int
    last_nack_reason: str | None
    last_report: Report | None
    stream: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """The control plane at one instant.

    Attributes:
        version: 0: nothing is published yet.
        retrain_reason: why a retrain is asked for; None: it is not.
        canary: which model is on trial, and how it stands; None: none is.
    """

    epoch: int
    version: int
    mode: Mode
    mode_reason: str
    discipline: Discipline
    model_version: str | None
    missed_windows: int
    engines: tuple[EngineStatus, ...]
    retrain_reason: str | None = None
    canary: str | None = None
