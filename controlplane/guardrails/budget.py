"""The model may cost a little more than the rule, and not for long.

Conservative exploration (Wu, Shariff, Lattimore and Szepesvari 2016, "Conservative Bandits",
ICML, section 3): the baseline plays whenever the other choice could break the promise that
the sum of costs stays within a factor of the baseline's. Old costs fade, so that months of
thrift do not pay for hours of waste.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ledger:
    """Estimated costs so far, fading: of what played, and of the rule had it played."""

    played: float = 0.0
    rule: float = 0.0

    def affords(self, cost: float, rule_cost: float, *, ratio: float, allowance: float) -> bool:
        """Whether the promise still holds after a tick of ``cost``.

        Args:
            cost: of what is about to play.
            rule_cost: of the rule in the same tick.
            ratio: of the rule's sum; >= 1.
            allowance: on top, in ticks in which everything is lost; lets a tick be dear when
                the rule's cost so far is nearly nothing.
        """
        return self.played + cost <= ratio * (self.rule + rule_cost) + allowance

    def charged(self, cost: float, rule_cost: float, *, keep: float) -> "Ledger":
        """After a tick; ``keep`` in (0, 1] is what is left of the past by the next."""
        return Ledger(keep * (self.played + cost), keep * (self.rule + rule_cost))
