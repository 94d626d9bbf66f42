"""What the scheduler shows of itself to the plugin's threads, as one immutable record."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClassState:
    """One class's queue. Attributes: oldest_arrival_s, monotonic; None: nothing waits."""

    task_class: str
    waiting: int
    running: int
    waiting_past_slo: int
    oldest_arrival_s: float | None

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


@dataclass(frozen=True, slots=True)
class EngineState:
    """The engine at one moment.

    Attributes:
        kv_usage_ratio: of the KV blocks, in [0, 1].
        step_time: None: no step was measured yet.
    """

    kv_usage_ratio: float = 0.0
    classes: tuple[ClassState, ...] = ()
    step_time: StepTimeSums | None = None
