"""A simulated fleet that lives through a scenario, one tick at a time.

Shapes: N requests, C classes, T ticks, M measurements.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from models.loss import lateness_ratio
from models.window import STEP_S
from training.closed_loop.fates import fates_of
from training.simulator.kernel import advance
from training.simulator.model import Fleet
from training.simulator.play import slowed
from training.simulator.rollout import require_room
from training.simulator.scenario import Scenario
from training.simulator.scene import Float, Measurement, rules_of, scene_of
from training.simulator.state import State


def ticks_of(scenario: Scenario) -> int:
    """In how many ticks the scenario's requests arrive."""
    return max(1, math.ceil(scenario.duration_s / STEP_S))


def fleet_at(scenario: Scenario, fleet: Fleet, tick: int) -> Fleet:
    """The fleet at the speed that the scenario gives it in a tick.

    The course of the step time is taken in the middle of the tick; past the scenario's end, in
    its last one.
    """
    middle_s = (min(tick, ticks_of(scenario) - 1) + 0.5) * STEP_S
    factor = float(scenario.step_time.at(np.array(middle_s)))
    return fleet if factor == 1.0 else replace(fleet, engine=slowed(fleet.engine, factor))


class SimulatedFleet:
    """A fleet that lives through a scenario.

    One state and one series are changed in place, so that a tick costs little more than its
    simulation. The result is that of ``training.simulator.rollout.simulate``.

    Args:
        scenario: what happens.
        fleet: its ticks must be those of the control plane.
        ticks: how many there will be at most.

    Attributes:
        state: as it is now. Branch it to keep it.

    Raises:
        ValueError: the fleet has ticks of another length.
        RequestTooLarge: a request is larger than an engine's memory.
    """

    def __init__(self, scenario: Scenario, fleet: Fleet, ticks: int) -> None:
        workload = scenario.workload
        if fleet.tick_s != STEP_S:
            raise ValueError(f"the control plane's tick is {STEP_S} s, the fleet's {fleet.tick_s}")
        require_room(fleet.engine, workload)
        self.state = State.initial(fleet, requests=len(workload), classes=len(workload.classes))
        self._scenario = scenario
        self._fleet = self._paced = fleet
        self._scene = scene_of(fleet, workload, self.state, ticks)
        self._failing = np.flatnonzero(scenario.fails)  # [failing requests]

    @property
    def series(self) -> Float:
        """Of the ticks so far: [T, C, M] by ``training.simulator.scene.Measurement``.

        As an engine counts: a request that ended in an error is in violation.
        """
        lived: Float = self._scene.series[: self.state.ticks]
        return lived

    @property
    def over(self) -> bool:
        """Whether all requests have arrived and ended."""
        arrived = int(self.state.cursor["arrival"][0])
        return arrived == len(self._scenario.workload) and self.state.live == 0

    def tick(self, weights: NDArray[np.float64]) -> Float:
        """Live through one tick under weights [C]; what was measured: [C, M]."""
        tick = self.state.ticks
        paced = fleet_at(self._scenario, self._fleet, tick)
        if paced != self._paced:
            self._paced = paced
            self._scene = self._scene._replace(rules=rules_of(paced))
        own = self._scene.series[tick : tick + 1]  # [1, C, M]
        advance(self._scene._replace(series=own), weights[None])
        measured: Float = own[0]
        self._count_errors(measured, tick)
        return measured

    def _count_errors(self, measured: Float, tick: int) -> None:
        """Count the errors of a tick that the simulator took for answers in time."""
        if not len(self._failing):
            return
        workload, requests = self._scenario.workload, self.state.requests
        ended_s = requests["finished_s"][self._failing]
        ended = self._failing[(ended_s >= tick * STEP_S) & (ended_s < (tick + 1) * STEP_S)]
        fates = fates_of(
            workload, requests, ended, np.zeros(len(ended), np.bool_), now_s=(tick + 1) * STEP_S
        )
        in_time = lateness_ratio(fates, workload.classes) <= 1.0
        errors = np.bincount(fates.class_index[in_time], minlength=len(measured))  # [C]
        measured[:, Measurement.VIOLATED] += errors
