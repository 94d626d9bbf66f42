"""What was found: every policy's losses in every setting, and what follows from them.

Shapes: U units.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.learning.intervals import (
    LEAST_LOSS,
    Float,
    Interval,
    change_of,
    gap_closed_of,
    headroom_of,
)
from benchmarks.learning.units import (
    BEST_STATIC,
    CONTROLS,
    LEARNED,
    ORACLE,
    OWN_STATIC,
    Result,
)


@dataclass(frozen=True, slots=True, eq=False)
class SettingFindings:
    """One setting.

    Attributes:
        losses: by policy: [U] of the same units.
        attainment: by policy: mean over the units, of the class that attains least in each.
    """

    name: str
    regime: str
    late: str
    losses: Mapping[str, Float]
    attainment: Mapping[str, float]

    @classmethod
    def of(cls, name: str, regime: str, late: str, units: Sequence[Result]) -> "SettingFindings":
        """Out of the units' results, which hold the same policies."""
        policies = list(units[0])
        return cls(
            name=name,
            regime=regime,
            late=late,
            losses={
                policy: np.array([unit[policy]["loss"] for unit in units]) for policy in policies
            },
            attainment={
                policy: float(np.mean([unit[policy]["attainment"] for unit in units]))
                for policy in policies
            },
        )

    @property
    def mean_losses(self) -> dict[str, float]:
        """By policy."""
        return {policy: float(losses.mean()) for policy, losses in self.losses.items()}

    @property
    def headroom(self) -> Interval | None:
        """From the best static weights to the oracle."""
        return headroom_of([self.losses[BEST_STATIC]], [self.losses[ORACLE]])

    @property
    def own_headroom(self) -> Interval | None:
        """From the best static weights for this regime alone."""
        return headroom_of([self.losses[OWN_STATIC]], [self.losses[ORACLE]])

    def gap_closed(self, policy: str = LEARNED) -> Interval | None:
        """By a policy, between the best static weights and the oracle."""
        return gap_closed_of(
            [self.losses[policy]], [self.losses[BEST_STATIC]], [self.losses[ORACLE]]
        )

    def change(self, policy: str, base: str) -> Interval | None:
        """Of the policy's mean loss against another's."""
        if base not in self.losses:
            return None
        return change_of([self.losses[policy]], [self.losses[base]])

    @property
    def ahead(self) -> list[str]:
        """Policies that lose noticeably less than the learned one, the best first."""
        means = self.mean_losses
        own = {LEARNED, ORACLE, *CONTROLS}
        least = means[LEARNED] - LEAST_LOSS
        better = [one for one in means if one not in own and means[one] < least]
        return sorted(better, key=means.__getitem__)


@dataclass(frozen=True, slots=True)
class Findings:
    """All settings. Attributes: model: the learned policy, in words."""

    model: str
    settings: tuple[SettingFindings, ...]

    @property
    def policies(self) -> list[str]:
        """In the order in which they were run, over all settings."""
        return list(dict.fromkeys(policy for one in self.settings for policy in one.losses))

    def change(self, policy: str, base: str) -> Interval | None:
        """Over all settings in which both are there.

        The two late policies of a regime share their seeds, so their losses are one unit.
        """
        regimes: dict[str, list[SettingFindings]] = {}
        for one in self.settings:
            if {policy, base} <= one.losses.keys():
                regimes.setdefault(one.regime, []).append(one)
        if not regimes:
            return None
        return change_of(
            *(
                [np.mean([one.losses[name] for one in both], axis=0) for both in regimes.values()]
                for name in (policy, base)
            )
        )
