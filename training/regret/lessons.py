"""What there is to learn at the states that a policy visits.

At a state, each candidate's weights are in force for some ticks, then what the policy wanted
again; every candidate meets the same sampled futures. What counts is how much of each class is
lost. A scenario's loss weighs the classes: by what their requests are worth, and the worst of
them once more. So the costs of all states of a scenario add up to its loss, but for what
they have in common.

Shapes: K candidates, C classes, T steps, F features, H ticks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from models.features import encode, violation_fraction
from models.loss import WORST_CLASS, SloLoss, request_losses
from models.rule import rule_shares
from models.window import STEP_S
from training.closed_loop.controller import Controller, Guard, Shares
from training.closed_loop.fates import fates_of
from training.closed_loop.plant import fleet_at, ticks_of
from training.closed_loop.steer import Steered, steer
from training.regret.candidates import Float, candidate_log_shares, normalised
from training.regret.cost import LocalCost, fit_cost
from training.regret.futures import branch_into
from training.simulator.model import Fleet
from training.simulator.rollout import evaluate
from training.simulator.scenario import Scenario
from training.simulator.state import State


@dataclass(frozen=True, slots=True)
class LessonOptions:
    """How a policy is examined.

    Attributes:
        states: how many of a scenario's are looked at.
        candidates: weights tried at each.
        futures: sampled at each.
        horizon_ticks: how long a candidate is in force.
        after_ticks: how long the policy's own weights are in force after it.
        near_worst: classes whose mean loss is so much below the worst's count as much less,
            by a factor of e, as the worst.
    """

    states: int = 16
    candidates: int = 24
    futures: int = 8
    horizon_ticks: int = 8
    after_ticks: int = 4
    near_worst: float = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """One state.

    Attributes:
        features: [C, T, F] what the network sees.
        cost: of what it may want.
        in_force: [C] log-shares before the decision.
        floor: [C] least shares.
        violation: [C] fraction in the step that follows.
        violation_known: [C] whether that step says anything of the class.
    """

    features: NDArray[np.float32]
    cost: LocalCost
    in_force: Float
    floor: Float
    violation: Float
    violation_known: NDArray[np.bool_]


class World(Protocol):
    """Where a policy is examined."""

    @property
    def fleet(self) -> Fleet:
        """The engines."""

    @property
    def seed(self) -> int:
        """Of everything random."""

    def scenario(self, future: int | None = None) -> Scenario:
        """What happens; with a number, the same with other requests."""


def lessons_of(
    world: World, controller: Controller, guard: Guard, options: LessonOptions
) -> tuple[SloLoss, tuple[Lesson, ...]]:
    """Steer through a world, and examine some of its states. A function of the arguments."""
    scenario = world.scenario()
    rng = np.random.default_rng([world.seed, 0x1E])
    ticks = ticks_of(scenario)
    chosen = sorted(rng.choice(ticks, size=min(options.states, ticks), replace=False).tolist())
    steered = steer(scenario, world.fleet, controller, guard=guard, keep=chosen)
    examiner = _Examiner(
        world=world,
        scenario=scenario,
        steered=steered,
        controller=controller,
        guard=guard,
        options=options,
        rng=rng,
    )
    return steered.loss, tuple(examiner.lessons())


class _Examiner:
    """Makes lessons of the states of one run."""

    def __init__(
        self,
        *,
        world: World,
        scenario: Scenario,
        steered: Steered,
        controller: Controller,
        guard: Guard,
        options: LessonOptions,
        rng: np.random.Generator,
    ) -> None:
        self._world = world
        self._scenario = scenario
        self._steered = steered
        self._controller = controller
        self._guard = guard
        self._options = options
        self._rng = rng
        self._classes = scenario.workload.classes
        self._class_weight = class_weights(scenario, steered.loss, options.near_worst)
        self._futures = [world.scenario(number) for number in range(options.futures)]

    def lessons(self) -> Iterator[Lesson]:
        """Of the states that were kept and have a step after them."""
        for tick, state in self._steered.states.items():
            if tick + 1 < len(self._steered.windows):
                yield self._lesson(tick, state)

    def _lesson(self, tick: int, state: State) -> Lesson:
        window = self._steered.windows[tick]
        wanted = np.log(self._controller.weights(window, self._classes, tick))
        rule = np.log(rule_shares(window, self._classes))
        tried = candidate_log_shares(wanted, rule, self._options.candidates, self._rng)
        before = self._steered.shares[tick - 1] if tick else self._steered.shares[0]
        costs = self._costs(tick, state, self._paths(tried, before))
        following = violation_fraction(self._steered.windows[tick + 1])
        return Lesson(
            features=encode(window, self._classes),
            cost=fit_cost(tried, costs, wanted),
            in_force=normalised(np.log(before)),
            floor=np.array([one.floor for one in self._classes]),
            violation=following.ratio[:, -1],
            violation_known=(following.known & (following.requests > 0))[:, -1],
        )

    def _paths(self, tried: Float, before: Shares) -> Float:
        """What would be in force under each candidate: [K, H, C]; the first is the policy's."""
        options = self._options
        wanted = np.exp(tried)  # [K, C]
        paths = np.empty((len(tried), options.horizon_ticks + options.after_ticks, len(before)))
        for path, own in zip(paths, wanted, strict=True):
            now = before
            for tick in range(len(path)):
                aim = own if tick < options.horizon_ticks else wanted[0]
                path[tick] = now = self._guard(aim, now)
        return paths

    def _costs(self, tick: int, state: State, paths: Float) -> Float:
        """Mean over the futures: [K]."""
        fleet = fleet_at(self._scenario, self._world.fleet, tick)
        until_s = (tick + paths.shape[1]) * STEP_S
        costs = np.zeros(len(paths))
        for other in self._futures:
            future = branch_into(self._scenario, state, other, fleet, until_s=until_s)
            for index, run in enumerate(evaluate(fleet, future.workload, paths, future.state)):
                rows = np.arange(len(run.workload))
                fates = fates_of(
                    run.workload,
                    run.state.requests,
                    rows,
                    future.fails[run.first + rows],
                    now_s=until_s,
                    overhead_s=fleet.engine.client_overhead_s,
                )
                lost = request_losses(fates, self._classes)  # [N]
                costs[index] += self._class_weight[fates.class_index] @ lost
        return costs / len(self._futures)


def class_weights(scenario: Scenario, loss: SloLoss, near_worst: float) -> Float:
    """What a wholly lost request of each class adds to the scenario's loss: [C].

    The gradient of the loss by each class's losses, the worst class taken softly; as a share of
    what the requests of one tick are worth in the mean, so that scenarios of any length compare.
    """
    classes = scenario.workload.classes
    value = np.array([one.value for one in classes])  # [C]
    count = np.bincount(scenario.workload.class_index, minlength=len(classes))  # [C]
    mean = np.where(np.isnan(loss.by_class), -np.inf, loss.by_class)  # [C]
    worst = np.exp((mean - loss.worst) / near_worst)  # [C]
    worst /= worst.sum()
    weights: Float = value / (value @ count) + WORST_CLASS * worst / np.maximum(count, 1)
    return weights * ticks_of(scenario)
