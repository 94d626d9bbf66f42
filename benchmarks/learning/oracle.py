"""A clairvoyant with the control plane's action: weights of the classes, once per tick.

It knows all requests that will come. It starts from the best path of weights that it is given,
and improves it in sweeps: at a tick, with the state as it is there, other weights for a few
ticks are tried on the true future up to a horizon, and the path changes where they lose less.
What is tried counts by what it adds to the total loss; the path that counts in the end is the
one with the least total loss of all sweeps, so the oracle is never worse than what it was given.
No bound on the steps of the weights holds for it.

Shapes: T ticks, C classes, K candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.classes import TaskClass
from models.loss import SloLoss, request_losses
from models.window import STEP_S, Window
from training.closed_loop.controller import Shares
from training.closed_loop.fates import fates_of
from training.closed_loop.plant import SimulatedFleet, fleet_at, ticks_of
from training.closed_loop.steer import Steered, steer
from training.regret.candidates import Float, normalised
from training.regret.lessons import class_weights
from training.simulator.model import Fleet
from training.simulator.rollout import evaluate
from training.simulator.scenario import Scenario
from training.simulator.state import State


@dataclass(frozen=True, slots=True)
class Sweep:
    """One pass over the ticks.

    Attributes:
        ticks: for which a candidate's weights hold; decided anew after half of that.
        horizon: ticks that are looked at.
    """

    ticks: int
    horizon: int

    @property
    def every(self) -> int:
        """Ticks from one decision to the next."""
        return max(1, self.ticks // 2)


@dataclass(frozen=True, slots=True)
class OracleOptions:
    """How hard is looked. Attributes: candidates: at each tick; radii: of the random ones."""

    sweeps: tuple[Sweep, ...] = (Sweep(8, 12), Sweep(4, 10), Sweep(2, 8))
    candidates: int = 14
    radii: tuple[float, ...] = (0.3, 1.0, 2.5)


@dataclass(frozen=True, slots=True, eq=False)
class PathController:
    """Weights by tick, the last of them for good. Attributes: path: [T, C]."""

    path: Float

    def weights(self, _window: Window, _classes: Sequence[TaskClass], tick: int) -> Shares:
        """Of the tick."""
        weights: Shares = self.path[min(tick, len(self.path) - 1)]
        return weights


def clairvoyant(
    scenario: Scenario, fleet: Fleet, paths: Sequence[Float], options: OracleOptions, *, seed: int
) -> Steered:
    """The best that was found.

    Args:
        scenario: what will happen.
        fleet: under the discipline that the paths are for.
        paths: where to start, and what is tried at every tick: [T, C] each, of any length.
        options: how hard to look.
        seed: of the random candidates.
    """
    search = _Search(scenario, fleet, paths, options, np.random.default_rng([seed, 0x0A]))
    best = min((search.lived(path) for path in paths), key=_total)
    for sweep in options.sweeps:
        best = min(best, search.lived(search.swept(best, sweep)), key=_total)
    return best


def _total(run: Steered) -> float:
    return run.loss.total


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """The oracle's arguments."""

    scenario: Scenario
    fleet: Fleet
    paths: Sequence[Float]
    options: OracleOptions
    rng: np.random.Generator

    def lived(self, path: Float) -> Steered:
        """The whole scenario under a path."""
        return steer(self.scenario, self.fleet, PathController(path))

    def swept(self, best: Steered, sweep: Sweep) -> Float:
        """A path that is better tick by tick: [T, C]."""
        weight = class_weights(self.scenario, best.loss, _near_worst(best.loss))  # [C]
        ticks = ticks_of(self.scenario)
        log_path = np.log(_extended(best.shares, ticks + sweep.horizon))  # [T, C]
        plant = SimulatedFleet(self.scenario, self.fleet, ticks)
        for tick in range(ticks):
            if tick % sweep.every == 0:
                own = log_path[tick : tick + sweep.horizon]  # [H, C]
                tried = np.concatenate(
                    [self._around(own, sweep.ticks), self._others(own, tick, sweep.ticks)]
                )  # [K, H, C]
                costs = self._costs(plant.state, tried, weight)  # [K]
                log_path[tick : tick + sweep.horizon] = tried[int(np.argmin(costs))]
            plant.tick(np.exp(log_path[tick]))
        path: Float = np.exp(log_path)
        return path

    def _around(self, own: Float, ticks: int) -> Float:
        """[K, H, C] the path as it is, each class up and down, random directions."""
        classes = own.shape[1]
        axes = np.concatenate([np.eye(classes), -np.eye(classes)])  # [2C, C]
        count = max(0, self.options.candidates - 1 - len(axes))
        directions = self.rng.normal(size=(count, classes))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        moves = np.concatenate([axes, directions])  # [K - 1, C]
        radii = self.rng.permutation(np.resize(self.options.radii, len(moves)))  # [K - 1]
        tried = np.repeat(own[None], 1 + len(moves), axis=0)
        tried[1:, :ticks] += (radii[:, None] * moves)[:, None]
        return normalised(tried)

    def _others(self, own: Float, tick: int, ticks: int) -> Float:
        """[K, H, C] what the given paths have at this tick, then the path as it is."""
        tried = np.repeat(own[None], len(self.paths), axis=0)
        for other, path in zip(tried, self.paths, strict=True):
            other[:ticks] = np.log(path[min(tick, len(path) - 1)])
        return tried

    def _costs(self, state: State, tried: Float, weight: Float) -> Float:
        """What each candidate loses up to its horizon: [K]."""
        workload = self.scenario.workload
        now_s = (state.ticks + tried.shape[1]) * STEP_S
        paced = fleet_at(self.scenario, self.fleet, state.ticks)
        costs = np.empty(len(tried))
        for index, run in enumerate(evaluate(paced, workload, np.exp(tried), state)):
            rows = np.arange(len(run.workload))
            fates = fates_of(
                run.workload,
                run.state.requests,
                rows,
                self.scenario.fails[run.first + rows],
                now_s=now_s,
                overhead_s=paced.engine.client_overhead_s,
            )
            costs[index] = weight[fates.class_index] @ request_losses(fates, workload.classes)
        return costs


def _near_worst(loss: SloLoss) -> float:
    """How near a class has to be to the worst to count as such: in proportion, never 0."""
    return max(0.2 * loss.worst, 1e-6)


def _extended(path: Float, ticks: int) -> Float:
    """So many ticks long, the last weights for good: [T, C]."""
    rows = np.minimum(np.arange(ticks), len(path) - 1)
    long: Float = path[rows]
    return long
