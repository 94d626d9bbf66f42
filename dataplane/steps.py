"""How long the engine's steps take, and what was in them."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one step computes.

    Attributes:
        prefill_tokens: prompt tokens, those of resumed requests included.
        decoding: sequences that get their next token.
        kv_tokens: tokens in the KV blocks that are in use.
    """

    prefill_tokens: int
    decoding: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class _Pending:
    output: object
    load: StepLoad
    started_s: float


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step that ended."""

    load: StepLoad
    elapsed_s: float


class StepLog:
    """Pairs the scheduling of a step with the arrival of its result.

    With asynchronous scheduling the next step is scheduled before the result of this one
    is there, and the engine starts on it when this one ends: a step's time runs from its
    scheduling or from the end of the step before, whichever is later.
    """

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque()
        self._last_end_s = 0.0

    def scheduled(self, output: object, load: StepLoad, now_s: float) -> None:
        """A step was handed to the engine."""
        self._pending.append(_Pending(output, load, now_s))

    def ended(self, output: object, now_s: float) -> TimedStep | None:
        """Its result came; None: it was never handed over here."""
        while self._pending:
            pending = self._pending.popleft()
            if pending.output is output:
                started_s = max(pending.started_s, self._last_end_s)
                self._last_end_s = now_s
                return TimedStep(pending.load, now_s - started_s)
        return None
