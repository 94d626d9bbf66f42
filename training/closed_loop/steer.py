"""Steer a simulated fleet through a scenario: the control plane's tick, thousands of times as fast.

At each tick: the window of the ticks before, the controller's weights on it, the guard, and
the fleet lives on under what came out. Everything is a function of the arguments.

Shapes: N requests, C classes, T ticks, M measurements.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from models.classes import TaskClass
from models.loss import SloLoss, slo_loss
from models.window import STEP_S, Window
from training.closed_loop.controller import Controller, Guard, Shares, unguarded
from training.closed_loop.fates import fates_of
from training.closed_loop.plant import SimulatedFleet, ticks_of
from training.closed_loop.telemetry import Telemetry
from training.simulator.model import Fleet
from training.simulator.policies import value_shares
from training.simulator.result import Outcomes
from training.simulator.rollout import Run
from training.simulator.scenario import Scenario
from training.simulator.scene import Float
from training.simulator.state import State

DRAIN_S = 300.0
"""How long a fleet may go on after the last arrivals; what is not complete by then never is."""


@dataclass(frozen=True, slots=True, eq=False)
class Steered:
    """What came of it.

    Attributes:
        loss: of all requests, by clients' times; what was never served or failed is lost.
        outcomes: [N] of each request.
        windows: T of them, what the controller saw at each tick.
        shares: [T, C] in force in each tick.
        series: [T, C, M] as measured.
        states: by tick, as the fleet was before it; of the ticks that were asked for.
    """

    loss: SloLoss
    outcomes: Outcomes
    windows: tuple[Window, ...]
    shares: Float
    series: Float
    states: Mapping[int, State]


def steer(
    scenario: Scenario,
    fleet: Fleet,
    controller: Controller,
    *,
    guard: Guard = unguarded,
    keep: Collection[int] = (),
    drain_s: float = DRAIN_S,
) -> Steered:
    """Live through a scenario until its requests are complete.

    The shares in force before the first tick are those of the classes' values, as when a
    control plane starts.

    Args:
        scenario: what happens.
        fleet: in ticks of the control plane's.
        controller: who wants weights.
        guard: what is done to them; the control plane's guardrails, say.
        keep: ticks at whose beginning the state is kept.
        drain_s: how long after the scenario's end requests may take.

    Raises:
        ValueError: the fleet's ticks are others, or the controller wants what are no weights.
        RequestTooLarge: a request is larger than an engine's memory.
    """
    classes = scenario.workload.classes
    ticks = ticks_of(scenario) + math.ceil(drain_s / STEP_S)
    plant, telemetry = SimulatedFleet(scenario, fleet, ticks), Telemetry(classes, ticks)
    shares, in_force = np.zeros((ticks, len(classes))), value_shares(classes)
    seen: list[Window] = []
    states: dict[int, State] = {}
    while len(seen) < ticks and not plant.over:
        tick = len(seen)
        if tick in keep:
            states[tick] = plant.state.branch()
        seen.append(telemetry.window())
        wanted = _weights(controller, seen[-1], classes, tick)
        shares[tick] = in_force = guard(wanted, in_force)
        telemetry.observe(plant.tick(in_force))
    run = Run(scenario.workload, plant.state, plant.series)
    return Steered(
        loss=loss_of(scenario, fleet, plant.state),
        outcomes=Outcomes.of(run, fleet.engine),
        windows=tuple(seen),
        shares=shares[: len(seen)],
        series=plant.series,
        states=states,
    )


def _weights(
    controller: Controller, window: Window, classes: Sequence[TaskClass], tick: int
) -> Shares:
    weights = controller.weights(window, classes, tick)
    if weights.shape != (len(classes),) or not (np.isfinite(weights) & (weights > 0)).all():
        raise ValueError(f"{len(classes)} positive weights are needed at tick {tick}: {weights}")
    return weights


def loss_of(scenario: Scenario, fleet: Fleet, state: State) -> SloLoss:
    """What is lost when a scenario ends in a state: what was not served by then is lost."""
    workload, requests = scenario.workload, state.requests
    never_served = np.isnan(requests["finished_s"])  # [N]
    fates = fates_of(
        workload,
        requests,
        np.arange(len(workload)),
        scenario.fails | never_served,
        now_s=state.ticks * STEP_S,
        overhead_s=fleet.engine.client_overhead_s,
    )
    return slo_loss(fates, workload.classes)
