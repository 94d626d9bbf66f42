"""Which engines take part, and which model they run when."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Arm(StrEnum):
    """Whose weights a block runs."""

    CHAMPION = "champion"
    CHALLENGER = "challenger"


@dataclass(frozen=True, slots=True)
class Moment:
    """Where in the timetable an instant lies.

    Attributes:
        block: counted from 0; blocks 2n and 2n + 1 make pair n.
        counts: it is past the block's wash-out.
    """

    block: int
    arm: Arm
    counts: bool

    @property
    def pair(self) -> int:
        """The pair that the block is part of."""
        return self.block // 2


@dataclass(frozen=True, slots=True)
class Timetable:
    """Alternating blocks; of each pair, chance decides which arm comes first.

    A fixed alternation would side with whatever in the traffic has the same period.

    Attributes:
        start_s: of block 0, on the clock that never steps.
        block_s: length of a block.
        washout_s: start of a block in which the queues are still those of the one before.
        seed: names the trial; two trials differ in their order.

    Raises:
        ValueError: the wash-out leaves nothing of the block.
    """

    start_s: float
    block_s: float
    washout_s: float
    seed: str

    def __post_init__(self) -> None:
        """Something must be left to count."""
        if not 0 <= self.washout_s < self.block_s:
            raise ValueError(
                f"washout_s ({self.washout_s:g}) must be below block_s ({self.block_s:g})"
            )

    def at(self, now_s: float) -> Moment:
        """Where ``now_s`` lies; before the start counts as its first instant."""
        elapsed_s = max(0.0, now_s - self.start_s)
        block = math.floor(elapsed_s / self.block_s)
        within_s = elapsed_s - block * self.block_s
        return Moment(block, self.arm(block), counts=within_s >= self.washout_s)

    def arm(self, block: int) -> Arm:
        """Whose turn a block is."""
        challenger_first = _draw(f"{self.seed}/{block // 2}") % 2
        return Arm.CHALLENGER if block % 2 != challenger_first else Arm.CHAMPION


def choose_engines(engine_ids: Iterable[str], *, ratio: float, seed: str) -> frozenset[str]:
    """The canaries: about so many, at least one, and never all of several.

    The draw goes by name: an engine that comes or goes changes little about the others.
    """
    ranked = sorted(engine_ids, key=lambda engine_id: _draw(f"{seed}/{engine_id}"))
    most = max(1, len(ranked) - 1)
    return frozenset(ranked[: min(most, max(1, round(ratio * len(ranked))))])


def _draw(text: str) -> int:
    """A number that looks random and is the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
