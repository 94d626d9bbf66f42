"""A policy against the rule, on worlds that it never saw.

Both meet the same requests, so worlds are compared in pairs: of what differs between worlds,
nothing is left in the difference.

Shapes: P pairs.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from models.bundle import Bundle
from training.closed_loop.controller import BundleController, Guard, RuleController
from training.closed_loop.steer import steer
from training.gate import Paired
from training.gate.bootstrap import mean_difference, paired_interval
from training.regret.worlds import draw_world

FIRST_TRIAL_SEED = 10_000_000
"""No training counts its worlds this far."""
FEWEST_PAIRS = 10


@dataclass(frozen=True, slots=True)
class Pair:
    """One world under both.

    Attributes:
        rule: total loss under the rule.
        learned: under the policy.
        rule_worst: mean loss of the worst class under the rule.
        learned_worst: likewise under the policy.
    """

    seed: int
    regime: str
    load: float
    rule: float
    learned: float
    rule_worst: float
    learned_worst: float


@dataclass(frozen=True, slots=True)
class Standing:
    """Some pairs in one line: mean losses, and their difference with a 95% interval.

    Attributes:
        change: learned minus rule, by pairs; negative is better.
        low: of the bootstrap interval of the mean change.
        high: likewise.
        wins: pairs in which the policy lost less.
    """

    pairs: int
    rule: float
    learned: float
    change: float
    low: float
    high: float
    wins: int
    rule_worst: float
    learned_worst: float

    @property
    def change_ratio(self) -> float:
        """Of the rule's loss."""
        return self.change / self.rule if self.rule > 0 else 0.0

    @property
    def beats_the_rule(self) -> bool:
        """Enough pairs, the whole interval below 0, and the worst class no worse off."""
        enough = self.pairs >= FEWEST_PAIRS
        return enough and self.high < 0 and self.learned_worst <= self.rule_worst


def compare(seed: int, *, bundle: Bundle, guard: Guard, duration_s: float) -> Pair:
    """Steer both through the world of a seed."""
    world = draw_world(seed, duration_s)
    scenario = world.scenario()
    rule, learned = (
        steer(scenario, world.fleet, controller, guard=guard).loss
        for controller in (RuleController(), BundleController(bundle))
    )
    return Pair(
        seed, world.regime, world.load, rule.total, learned.total, rule.worst, learned.worst
    )


def standing(pairs: Sequence[Pair]) -> Standing:
    """All pairs in one line.

    Raises:
        ValueError: there are none.
    """
    if not pairs:
        raise ValueError("there are no pairs to compare")
    columns = np.array(
        [[one.rule, one.learned, one.rule_worst, one.learned_worst] for one in pairs]
    )  # [P, 4]
    change = columns[:, 1] - columns[:, 0]  # [P]
    both = Paired(tuple(columns[:, 0].tolist()), tuple(columns[:, 1].tolist()))
    interval = paired_interval(both, mean_difference)
    rule, learned, rule_worst, learned_worst = columns.mean(axis=0).tolist()
    return Standing(
        pairs=len(pairs),
        rule=rule,
        learned=learned,
        change=interval.estimate,
        low=interval.low,
        high=interval.high,
        wins=int((change < 0).sum()),
        rule_worst=rule_worst,
        learned_worst=learned_worst,
    )


def standings(pairs: Sequence[Pair]) -> Mapping[str, Standing]:
    """By regime, in the order of their names, and ``all`` at the end."""
    by_regime: dict[str, list[Pair]] = defaultdict(list)
    for pair in sorted(pairs, key=lambda one: one.regime):
        by_regime[pair.regime].append(pair)
    return {**{name: standing(own) for name, own in by_regime.items()}, "all": standing(pairs)}
