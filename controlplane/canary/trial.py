"""One challenger's trial, from pairs of blocks to an outcome."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from controlplane.canary.blocks import Arm, Moment
from controlplane.canary.sequential import BettingTest


class Outcome(StrEnum):
    """What is to become of the challenger."""

    GOES_ON = "goes_on"
    HARM = "harm"
    """It loses more than the champion: stop, and go back if it serves already."""
    NO_WORSE = "no_worse"
    """It may be promoted."""
    UNDECIDED = "undecided"
    """Time is up: stop, the champion stays."""


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """When a trial ends.

    Attributes:
        alpha: probability of a wrong HARM, and of a wrong NO_WORSE, over the whole trial.
        margin: by which the loss, in [0, 1], may be larger and still count as no worse.
        max_pairs: of blocks, until it ends undecided.
    """

    alpha: float = 0.05
    margin: float = 0.05
    max_pairs: int = 480


@dataclass(frozen=True, slots=True)
class TrialPolicy:
    """How models are tried.

    Attributes:
        ratio: of the connected engines that are canaries.
        watch_s: how long after its promotion a champion is watched at most.
    """

    ratio: float
    block_s: float
    washout_s: float
    limits: TrialLimits
    watch_s: float


class Trial:
    """Takes the loss of each block; says after each pair how it stands.

    With d, the challenger's loss less the champion's in one pair, two tests run at once:
    HARM rejects "the mean of d is at most 0", NO_WORSE "it is at least the margin". A pair of
    which a block finished nothing, or was interrupted, tells nothing.

    Attributes:
        differences: d of each pair so far.
    """

    def __init__(self, limits: TrialLimits) -> None:
        self.outcome = Outcome.GOES_ON
        self.differences: list[float] = []
        self._limits = limits
        self._harm, self._no_worse = BettingTest(), BettingTest()
        self._pending: tuple[int, dict[Arm, float]] = (-1, {})

    @classmethod
    def resumed(cls, limits: TrialLimits, differences: Iterable[float]) -> "Trial":
        """The trial that has seen these pairs, as a process before this one noted them.

        To begin anew instead would be another chance for a wrong outcome.
        """
        trial = cls(limits)
        for difference in differences:
            if trial.outcome is Outcome.GOES_ON:
                trial._take(difference)
        return trial

    @property
    def pairs(self) -> int:
        """That told something."""
        return len(self.differences)

    @property
    def mean_difference(self) -> float | None:
        """Of the losses, challenger less champion; None before the first pair."""
        return sum(self.differences) / self.pairs if self.pairs else None

    @property
    def reason(self) -> str:
        """How it stands, for people."""
        difference = self.mean_difference
        if difference is None:
            return "no pair of blocks yet"
        return f"loss {difference:+.4f} against the champion's over {self.pairs} pairs of blocks"

    def block_ended(self, block: Moment, loss: float | None) -> Outcome:
        """Take the loss of a block, in [0, 1]; None: it tells nothing.

        Raises:
            ValueError: the loss is outside [0, 1].
        """
        if loss is not None and not 0.0 <= loss <= 1.0:
            raise ValueError(f"a loss is in [0, 1], got {loss}")
        pair, losses = self._pending
        if block.pair != pair:
            losses = {}
        if loss is not None:
            losses[block.arm] = loss
        self._pending = (block.pair, losses)
        if self.outcome is Outcome.GOES_ON and len(losses) == len(Arm):
            self._take(losses[Arm.CHALLENGER] - losses[Arm.CHAMPION])
            self._pending = (block.pair, {})
        return self.outcome

    def _take(self, difference: float) -> None:
        self.differences.append(difference)
        self._harm.update(difference)
        self._no_worse.update(self._limits.margin - difference)
        if self._harm.rejects(self._limits.alpha):
            self.outcome = Outcome.HARM
        elif self._no_worse.rejects(self._limits.alpha):
            self.outcome = Outcome.NO_WORSE
        elif self.pairs >= self._limits.max_pairs:
            self.outcome = Outcome.UNDECIDED
