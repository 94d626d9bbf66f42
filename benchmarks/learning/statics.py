"""The best weights that stay as they are, tuned on training seeds.

A successive random search on log-shares: wide around the values' own weights first, then
narrower around the winners. All candidates are tried in all regimes, so that one search gives
the weights for each purpose: of all regimes together, of one regime alone, and of all but one.

Shapes: K candidates, C classes, R regimes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.learning.settings import FIRST_TRAINING_SEED, FLEET, Setting
from models.window import STEP_S
from training.closed_loop.controller import Shares
from training.closed_loop.plant import SimulatedFleet, ticks_of
from training.closed_loop.steer import DRAIN_S, loss_of
from training.regret.candidates import Float, centred
from training.simulator.policies import value_shares
from training.simulator.scenario import Scenario

Losses = Callable[[Sequence[Setting], Float], Float]
"""Mean losses of candidates' log-shares [K, C] in settings: [K, R]."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How long is searched.

    Attributes:
        first: candidates of the first round.
        near: candidates around each winner in each later round.
        spread: standard deviation of log-shares in the first round.
        radii: likewise in the later ones.
        traces: training seeds in each regime.
    """

    first: int = 48
    near: int = 4
    spread: float = 1.5
    radii: tuple[float, ...] = (0.5, 0.2)
    traces: int = 8

    @property
    def rounds(self) -> int:
        """In how many the candidates are tried."""
        return 1 + len(self.radii)


@dataclass(frozen=True, slots=True)
class Statics:
    """The weights for one regime: each sums to 1.

    Attributes:
        mixed: [C] best on all regimes with these classes together.
        own: [C] best on this regime alone.
        elsewhere: [C] best on all others; None: there is no other with these classes.
    """

    mixed: tuple[float, ...]
    own: tuple[float, ...]
    elsewhere: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Trial:
    """Some candidates in one setting. Attributes: log_shares: K times C."""

    setting: Setting
    log_shares: tuple[tuple[float, ...], ...]
    traces: int

    def __call__(self) -> list[float]:
        """Mean loss of each candidate over the training seeds."""
        seeds = range(FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + self.traces)
        scenarios = [self.setting.scenario(seed) for seed in seeds]
        return [
            float(np.mean([static_loss(scenario, np.exp(one)) for scenario in scenarios]))
            for one in np.array(self.log_shares)
        ]


def static_loss(scenario: Scenario, weights: Shares) -> float:
    """Total loss under weights that stay: as ``steer`` has it, without a controller's windows."""
    ticks = ticks_of(scenario) + math.ceil(DRAIN_S / STEP_S)
    plant = SimulatedFleet(scenario, FLEET, ticks)
    while plant.state.ticks < ticks and not plant.over:
        plant.tick(weights)
    return loss_of(scenario, FLEET, plant.state).total


def search(
    group: Sequence[Setting], losses: Losses, options: SearchOptions, *, seed: int
) -> list[Statics]:
    """The weights for each setting of a group with the same classes.

    Args:
        group: R settings.
        losses: tries candidates.
        options: how long to search.
        seed: of the candidates.
    """
    rng = np.random.default_rng([seed, 0xCE])
    regimes = len(group)
    all_of_them, one = np.ones((1, regimes)), np.eye(regimes)
    purposes = np.concatenate([all_of_them, one, all_of_them - one])  # [1 + 2R, R]
    values = np.log(value_shares(group[0].classes))  # [C]
    wide = options.spread * rng.normal(size=(options.first - 1, len(values)))
    tried = centred(np.concatenate([values[None], values + wide]))  # [K, C]
    found = losses(group, tried)  # [K, R]
    for radius in options.radii:
        winners = tried[np.unique(_best(found, purposes))]  # [W, C]
        moves = radius * rng.normal(size=(len(winners), options.near, len(values)))
        fresh = centred((winners[:, None] + moves).reshape(-1, len(values)))
        tried = np.concatenate([tried, fresh])
        found = np.concatenate([found, losses(group, fresh)])
    mixed, *rest = (_shares(tried[index]) for index in _best(found, purposes).tolist())
    alone = [None] * regimes
    own, elsewhere = rest[:regimes], rest[regimes:] if regimes > 1 else alone
    return [Statics(mixed, *both) for both in zip(own, elsewhere, strict=True)]


def _best(found: Float, purposes: Float) -> NDArray[np.intp]:
    """Which candidate has the least sum of losses over the regimes of each purpose."""
    best: NDArray[np.intp] = (found @ purposes.T).argmin(axis=0)
    return best


def _shares(log_shares: Float) -> tuple[float, ...]:
    weights = np.exp(log_shares - log_shares.max())
    return tuple((weights / weights.sum()).tolist())
