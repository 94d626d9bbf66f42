"""Worlds of the fleet's own: stretches of its history over again, and regimes it never had."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from models.classes import TaskClass
from models.window import Window
from training.regret.worlds import LEAST_LOAD, MOST_LOAD, World
from training.rehearsal.traffic import fitting, joined
from training.simulator.model import Fleet
from training.simulator.replay import replay_window
from training.simulator.scenario import Scenario
from training.simulator.traffic import ClassTraffic
from training.stretches import LONGEST_STEPS

_GOLDEN = 0.6180339887498949
"""Multiples of it, without their whole part, cover (0, 1) evenly however many they are."""


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """A stretch of history, in which as much is asked as was asked then.

    Attributes:
        name: of what it belongs to.
        seed: of times and lengths within the steps.
    """

    stretch: Window
    classes: tuple[TaskClass, ...]
    fleet: Fleet
    seed: int
    name: str = "replay"

    def scenario(self, future: int | None = None) -> Scenario:
        """What happens; with a number, the same rates with other requests."""
        seed = self.seed if future is None else (self.seed, future)
        drawn = replay_window(self.stretch, self.classes, seed=seed)
        workload = fitting(drawn, self.fleet.engine)
        return Scenario.steady(self.name, workload, self.stretch.steps * self.stretch.step_s)


class OwnWorld(World):
    """A regime with the fleet's own classes; no request is longer than an engine can hold."""

    def scenario(self, future: int | None = None) -> Scenario:
        """What happens; with a number, the same with other requests."""
        drawn = super().scenario(future)
        return replace(drawn, workload=fitting(drawn.workload, self.fleet.engine))


def replayed(
    stretches: Sequence[Window],
    classes: Sequence[TaskClass],
    fleet: Fleet,
    *,
    count: int,
    first_seed: int,
) -> list[Replayed]:
    """Every stretch once, then again with other times and lengths, until there are so many.

    A short stretch is lived through several times in a row: what weights do to queues takes
    minutes to show.
    """
    long = [_prolonged(one) for one in stretches]
    return [
        Replayed(long[number % len(long)], tuple(classes), fleet, first_seed + number)
        for number in range(count)
    ]


def _prolonged(stretch: Window) -> Window:
    times = math.ceil(LONGEST_STEPS / stretch.steps)
    return stretch if times == 1 else joined([stretch] * times).between(0, LONGEST_STEPS)


def regime_worlds(
    regime: str,
    traffic: tuple[ClassTraffic, ...],
    fleet: Fleet,
    *,
    count: int,
    first_seed: int,
    duration_s: float,
) -> list[OwnWorld]:
    """Scenarios of a regime, their loads spread evenly."""
    return [
        OwnWorld(
            regime=regime,
            traffic=traffic,
            fleet=fleet,
            load=LEAST_LOAD + (MOST_LOAD - LEAST_LOAD) * (number * _GOLDEN % 1.0),
            duration_s=duration_s,
            seed=first_seed + number,
        )
        for number in range(count)
    ]
