"""What the scheduler shows of itself to the plugin's threads, as one immutable record."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dataplane.breaker import BreakerState


@dataclass(frozen=True, slots=True)
class ClassState:
    """One class's queue, and what became of its requests since the engine started.

    Attributes:
        oldest_arrival_s: monotonic; None: nothing waits.
        judged: served, failed, or seen to wait past the TTFT objective; each counts once.
        violated: of these, all but those that met every objective.
    """

    task_class: str
    waiting: int
    running: int
    waiting_past_slo: int
    oldest_arrival_s: float | None
    judged: int = 0
    violated: int = 0

    def oldest_wait_s(self, now_s: float) -> float:
        """Wait of the oldest waiting request; 0 when none waits."""
        return 0.0 if self.oldest_arrival_s is None else max(0.0, now_s - self.oldest_arrival_s)


@dataclass(frozen=True, slots=True)
class StepTimeSums:
    """Sufficient statistics of the step-time model, over all steps since the engine started.

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


Counts = Mapping[str, int]
"""Counts since the engine started, or of this moment, by the value of a metric's label."""


@dataclass(frozen=True, slots=True)
class SteeringState:
    """What the plugin did to the engine beyond choosing who goes next.

    Attributes:
        breaker_trips: by the state that it went to.
        breaker_refusals: times that a head was not admitted, by tier.
        reserved_blocks: KV blocks that a tier may not take at this moment.
        held_back: times that a tier began to be held back by the reserve.
        displaced: requests preempted by weight, by what the head was short of.
        displacements_refused: heads that preempted nobody, by reason.
        capped_steps: steps with fewer prompt tokens than they could have held.
        withheld_tokens: by how many fewer, in all.
        coefficients: of the model of a step's time, in seconds per unit of the term; empty
            until it is known.
    """

    breaker_trips: Counts = field(default_factory=dict)
    breaker_refusals: Counts = field(default_factory=dict)
    reserved_blocks: Counts = field(default_factory=dict)
    held_back: Counts = field(default_factory=dict)
    displaced: Counts = field(default_factory=dict)
    displacements_refused: Counts = field(default_factory=dict)
    capped_steps: int = 0
    withheld_tokens: int = 0
    coefficients: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineState:
    """The engine at one moment.

    Attributes:
        kv_usage_ratio: of the KV blocks, in [0, 1].
        step_time: None: no step was measured yet.
        preemptions: since the engine started, for whatever reason.
        recomputed_tokens: since the engine started, computed and dropped.
    """

    kv_usage_ratio: float = 0.0
    classes: tuple[ClassState, ...] = ()
    step_time: StepTimeSums | None = None
    breaker: BreakerState = BreakerState.CLOSED
    preemptions: int = 0
    recomputed_tokens: int = 0
    steering: SteeringState = SteeringState()
