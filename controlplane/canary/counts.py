"""What an engine's counters say of a block."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """One class on one engine since the engine started, at two instants.

    Attributes:
        finished: requests that were served or failed.
        violated: of these, late or failed.
    """

    task_class: str
    finished_before: int
    finished_after: int
    violated_before: int
    violated_after: int

    @property
    def finished(self) -> int:
        """In between. A counter that fell began anew with the engine."""
        return _growth(self.finished_before, self.finished_after)

    @property
    def violated(self) -> int:
        """In between, likewise; never more than finished."""
        return min(_growth(self.violated_before, self.violated_after), self.finished)


def block_loss(counts: Iterable[BlockCounts], values: Mapping[str, float]) -> float | None:
    """Part of the finished value that was in violation, in [0, 1]; None: nothing finished.

    Args:
        counts: of all classes on all canaries.
        values: by class; of others a request counts nothing.
    """
    served = lost = 0.0
    for one in counts:
        value = values.get(one.task_class, 0.0)
        served += value * one.finished
        lost += value * one.violated
    return lost / served if served > 0 else None


def _growth(before: int, after: int) -> int:
    return after - before if after >= before else after
