"""What is simulated: an engine's size and speed, and the fleet that it is part of."""

import math
from dataclasses import dataclass, fields
from enum import StrEnum

from models.window import STEP_S


class Discipline(StrEnum):
    """How waiting requests are ordered; the data plane's, by the same names."""

    APQ = "apq"
    GCMU = "gcmu"
    WFQ = "wfq"
    EDF = "edf"
    STRICT = "strict"
    FCFS = "fcfs"
    CP_SCORE = "cp_score"


class Shaping(StrEnum):
    """How the prompt tokens of a step are shared; under ``fcfs`` always as stock."""

    STOCK = "stock"
    """Running prompts first, each as much as it wants."""
    SHARES = "shares"
    """Classes share by weight, running and waiting prompts alike."""
    SHAPED = "shaped"
    """And a step holds only so many that protected decodes keep their pace: the plugin."""


class Balancer(StrEnum):
    """How requests are spread over the engines as they arrive."""

    ROUND_ROBIN = "round_robin"
    LEAST_LOADED = "least_loaded"
    """To the one with the fewest requests, waiting and running; the first of equals."""


@dataclass(frozen=True, slots=True)
class EngineModel:
    """One engine: how long a step takes, and how much fits into one.

    A step that computes p prompt tokens while d sequences decode over k KV tokens takes
    ``base_s + prefill_s_per_token p + decode_s_per_sequence d + kv_s_per_token k +
    chunk_context_s sum(chunk * context)`` seconds, the sum being over the step's prompt
    chunks, and a chunk's context the tokens of its request that were computed before it.

    Attributes:
        client_overhead_s: what a client sees on top of the engine's TTFT and e2e.
        slots: requests that run at once.
        step_tokens: most tokens of a step.
        chunk_tokens: of these, most that one prompt may take while others run or wait, as
            vLLM's ``long_prefill_token_threshold``; 0: no limit.
        kv_blocks: usable ones.
        block_tokens: tokens in one of them.
        longest_tokens: of a sequence, as vLLM's ``max_model_len``; 0: as many as fit.

    Raises:
        ValueError: a coefficient is negative or not finite, or a size is not positive.
    """

    base_s: float
    prefill_s_per_token: float
    decode_s_per_sequence: float
    kv_s_per_token: float
    slots: int
    step_tokens: int
    kv_blocks: int
    block_tokens: int = 16
    chunk_tokens: int = 0
    longest_tokens: int = 0
    chunk_context_s: float = 0.0
    client_overhead_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is no engine."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{field.name} must be non-negative and finite, got {value}")
        for name in ("base_s", "slots", "step_tokens", "kv_blocks", "block_tokens"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")

    @property
    def most_tokens(self) -> int:
        """The longest sequence that can run."""
        fitting = self.kv_blocks * self.block_tokens
        return min(self.longest_tokens, fitting) if self.longest_tokens else fitting


@dataclass(frozen=True, slots=True)
class Preemption:
    """When a waiting request takes the place of running ones; the plugin's settings and defaults.

    Attributes:
        weight_ratio: the weight of the one is at least so many times that of the other.
        patience_ratio: share of its slack that a request first waits for a place.
        min_run_s: least time on the engine between two preemptions of a request.
        max_preemptions: of one request.
        recompute_share: of what the engine could prefill, spent on recomputing at most.
    """

    weight_ratio: float = 1.5
    patience_ratio: float = 0.5
    min_run_s: float = 1.0
    max_preemptions: int = 2
    recompute_share: float = 0.02


@dataclass(frozen=True, slots=True)
class Fleet:
    """Equal engines behind a balancer, and how they schedule.

    Attributes:
        declares_output: whether a request's ``max_tokens`` is what it will generate; else it
            has none. ``gcmu``, ``wfq`` and preemption look at it.
        tick_s: weights change, and metrics are read, this often.
        preemption: by weight; None: there is none. Under ``fcfs`` there never is.

    Raises:
        ValueError: there is no engine, or a tick takes no time.
    """

    engine: EngineModel
    engines: int = 1
    balancer: Balancer = Balancer.LEAST_LOADED
    discipline: Discipline = Discipline.APQ
    shaping: Shaping = Shaping.SHAPED
    declares_output: bool = False
    tick_s: float = STEP_S
    preemption: Preemption | None = Preemption()

    def __post_init__(self) -> None:
        """Refuse what cannot run."""
        if self.engines < 1:
            raise ValueError(f"engines must be at least 1, got {self.engines}")
        if not (math.isfinite(self.tick_s) and self.tick_s > 0):
            raise ValueError(f"tick_s must be positive, got {self.tick_s}")
