"""What a retrained network was measured by: verdicts of gates, and losses on regimes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from models.verdicts import Verdict

MODEL, BEST_STATIC, ORACLE = "model", "best_static", "oracle"
"""The policies that a closed gap is told by."""


@dataclass(frozen=True, slots=True)
class RegimeLosses:
    """Value-weighted SLO loss on one regime.

    Attributes:
        loss: by policy; the network's is ``MODEL``.
    """

    regime: str
    loss: Mapping[str, float]

    @property
    def gap_closed_ratio(self) -> float | None:
        """Part of the gap from the best static weights to the oracle that the network closes.

        Negative where it loses to them. None: one of the three is not known, or the oracle is
        no better, so that there is no gap.
        """
        known = [self.loss.get(policy) for policy in (MODEL, BEST_STATIC, ORACLE)]
        if any(loss is None for loss in known):
            return None
        model, static, oracle = (float(loss) for loss in known if loss is not None)
        return (static - model) / (static - oracle) if static > oracle else None


@dataclass(frozen=True, slots=True)
class Judgement:
    """All that was measured before a version is registered. Empty: nothing was."""

    verdicts: Sequence[Verdict] = ()
    regimes: Sequence[RegimeLosses] = ()

    @property
    def outcome(self) -> str:
        """``passed``, ``failed``, or ``not run``."""
        if not self.verdicts:
            return "not run"
        return "passed" if all(verdict.passed for verdict in self.verdicts) else "failed"
