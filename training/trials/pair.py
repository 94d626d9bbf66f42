"""Two models in one world: the same requests, the same engines, the same guardrails.

Shapes: N requests, C classes.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from models.bundle import Bundle
from models.window import STEP_S
from training.closed_loop.controller import Controller, Guard, RuleController
from training.closed_loop.steer import Steered, steer
from training.simulator.model import Fleet
from training.simulator.scenario import Scenario
from training.trials.served import Served


class World(Protocol):
    """Where two models are compared."""

    @property
    def fleet(self) -> Fleet:
        """The engines."""

    def scenario(self) -> Scenario:
        """What happens."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What became of a world under one model.

    Attributes:
        loss: value-weighted SLO loss.
        worst_attainment_ratio: part of the requests that met their objectives, of the class with
            the least; 1 without any request.
        tokens_per_s: prompt and generated tokens of the requests that ended, by the time until
            the last of them did.
    """

    loss: float
    worst_attainment_ratio: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Pair:
    """The same world under both. Attributes: outputs, not_finite: of the candidate."""

    champion: Measured
    candidate: Measured
    outputs: int
    not_finite: int


@dataclass(frozen=True, slots=True, eq=False)
class Contest:
    """Who is compared with whom; a function of the world.

    Attributes:
        champion: what serves; None: the rule does.
        candidate: what would take its place.
        guard: what stands between both and the engines.
    """

    champion: Bundle | None
    candidate: Bundle
    guard: Guard

    def __call__(self, world: World) -> Pair:
        """Steer both through the world."""
        scenario = world.scenario()
        candidate = Served(self.candidate)
        champion = RuleController() if self.champion is None else Served(self.champion)
        return Pair(
            champion=self._measured(scenario, world.fleet, champion),
            candidate=self._measured(scenario, world.fleet, candidate),
            outputs=candidate.outputs,
            not_finite=candidate.not_finite,
        )

    def _measured(self, scenario: Scenario, fleet: Fleet, controller: Controller) -> Measured:
        steered = steer(scenario, fleet, controller, guard=self.guard)
        return Measured(
            loss=steered.loss.total,
            worst_attainment_ratio=_worst_attainment_ratio(scenario, steered),
            tokens_per_s=_tokens_per_s(scenario, steered),
        )


def _worst_attainment_ratio(scenario: Scenario, steered: Steered) -> float:
    classes = len(scenario.workload.classes)
    index = scenario.workload.class_index  # [N]
    met = steered.outcomes.met & ~scenario.fails  # [N]
    asked = np.bincount(index, minlength=classes)  # [C]
    attained = np.bincount(index, weights=met, minlength=classes)[asked > 0] / asked[asked > 0]
    return float(attained.min(initial=1.0))


def _tokens_per_s(scenario: Scenario, steered: Steered) -> float:
    workload, ended = scenario.workload, steered.outcomes.finished  # [N]
    if not ended.any():
        return 0.0
    tokens = workload.prompt_tokens + workload.output_tokens  # [N]
    over_s = (workload.arrival_s + steered.outcomes.e2e_s)[ended].max()
    never_s = 0.0 if ended.all() else len(steered.windows) * STEP_S
    return float(tokens[ended].sum() / max(over_s, never_s))
