"""What an engine's counters say of a block."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """One class on one engine since the engine started, at two instants.

    Attributes:
        judged: requests that were served, failed, or waited past their objective.
        violated: of these, all but those that met every objective.
    """

    task_class: str
    judged_before: int
    judged_after: int
    violated_before: int
    violated_after: int

    @property
    def judged(self) -> int:
        """In between. A counter that fell began anew with the engine."""
        return _growth(self.judged_before, self.judged_after)

    @property
    def violated(self) -> int:
        """In between, likewise; never more than judged."""
        return min(_growth(self.violated_before, self.violated_after), self.judged)


def block_loss(counts: Iterable[BlockCounts], values: Mapping[str, float]) -> float | None:
    """Part of the judged value that was in violation, in [0, 1]; None: nothing was judged.

    Args:
        counts: of all classes on all canaries.
        values: by class; of others a request counts nothing.
    """
    judged = lost = 0.0
    for one in counts:
        value = values.get(one.task_class, 0.0)
        judged += value * one.judged
        lost += value * one.violated
    return lost / judged if judged > 0 else None


def _growth(before: int, after: int) -> int:
    return after - before if after >= before else after
