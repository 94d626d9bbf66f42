"""One unit of the comparison: every policy through the same scenario.

A unit is done in two parts, so that another model is compared without the oracle's having to look
again. Results are plain dictionaries: they are kept as JSON.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np

from benchmarks.learning.feedback import Pid
from benchmarks.learning.oracle import OracleOptions, clairvoyant
from benchmarks.learning.served import Delayed, Served, Shuffled
from benchmarks.learning.settings import FLEET, Setting
from benchmarks.learning.statics import Statics
from controlplane.guardrails import Bounds, Shares, guard
from models.bundle import Bundle
from training.closed_loop.controller import Controller, StaticController
from training.closed_loop.steer import Steered, steer
from training.simulator.model import Discipline
from training.simulator.policies import uniform_shares, value_shares
from training.simulator.scenario import Scenario

UNIFORM, VALUE = "uniform", "value"
BEST_STATIC, OWN_STATIC, ELSEWHERE = "static", "static-own", "static-else"
PID, RULE, ORACLE = "pid", "rule", "oracle"
LEARNED, FROZEN, SHUFFLED, DELAYED = "learned", "frozen", "shuffled", "delayed"
CONTROLS = (FROZEN, SHUFFLED, DELAYED)
DELAY_TICKS = 6
"""Half a minute."""

DISCIPLINES = (
    Discipline.GCMU,
    Discipline.CP_SCORE,
    Discipline.EDF,
    Discipline.STRICT,
    Discipline.WFQ,
    Discipline.FCFS,
)
"""Other orders of the queue, under the values' weights."""

POLICIES = (
    *(UNIFORM, VALUE, BEST_STATIC, OWN_STATIC, ELSEWHERE, PID, RULE, ORACLE),
    *map(str, DISCIPLINES),
    *(LEARNED, *CONTROLS),
)
"""All but further models."""

Result: TypeAlias = dict[str, dict[str, float]]
"""By policy: ``loss``, and ``attainment`` of the class with the lowest."""


@dataclass(frozen=True, slots=True)
class Baselines:
    """Every policy without a model, and the oracle."""

    setting: Setting
    seed: int
    statics: Statics
    oracle: OracleOptions

    def __call__(self) -> Result:
        """Run them."""
        scenario = self.setting.scenario(self.seed)
        classes = scenario.workload.classes
        statics = {
            UNIFORM: uniform_shares(classes),
            VALUE: value_shares(classes),
            BEST_STATIC: np.array(self.statics.mixed),
            OWN_STATIC: np.array(self.statics.own),
        }
        if self.statics.elsewhere is not None:
            statics[ELSEWHERE] = np.array(self.statics.elsewhere)
        runs = {
            name: steer(scenario, FLEET, StaticController(shares))
            for name, shares in statics.items()
        }
        runs[PID] = steer(scenario, FLEET, Pid(len(classes)), guard=step_by_step)
        runs[RULE] = steer(scenario, FLEET, Served(classes, None))
        paths = [run.shares for run in runs.values()]
        runs[ORACLE] = clairvoyant(scenario, FLEET, paths, self.oracle, seed=self.seed)
        values = StaticController(value_shares(classes))
        runs |= {
            str(discipline): steer(scenario, replace(FLEET, discipline=discipline), values)
            for discipline in DISCIPLINES
        }
        return {name: _figures(scenario, run) for name, run in runs.items()}


@dataclass(frozen=True, slots=True)
class Learned:
    """A model as the control plane serves it, and what of it is not owed to the window.

    Attributes:
        folder: of the bundle.
        sha256: of its weights.
        controls: whether to run these, too.
    """

    setting: Setting
    seed: int
    folder: Path
    sha256: str
    controls: bool

    def __call__(self) -> Result:
        """Run it."""
        scenario = self.setting.scenario(self.seed)
        classes, bundle = scenario.workload.classes, _bundle(self.folder)
        runs = {LEARNED: steer(scenario, FLEET, Served(classes, bundle))}
        if self.controls:
            mean = np.exp(np.log(runs[LEARNED].shares).mean(axis=0))  # [C]
            controllers: dict[str, Controller] = {
                FROZEN: StaticController(mean),
                SHUFFLED: Served(classes, bundle, Shuffled(self.seed)),
                DELAYED: Served(classes, bundle, Delayed(DELAY_TICKS)),
            }
            runs |= {name: steer(scenario, FLEET, one) for name, one in controllers.items()}
        return {name: _figures(scenario, run) for name, run in runs.items()}


def step_by_step(wanted: Shares, previous: Shares) -> Shares:
    """The control plane's bound on the step of a log-share, and no other guardrail."""
    return guard(
        wanted,
        previous=previous,
        floors=np.zeros(len(wanted)),
        max_log_share_step=Bounds().max_log_share_step,
    ).shares


def _figures(scenario: Scenario, run: Steered) -> dict[str, float]:
    kinds = scenario.workload.class_index
    met = run.outcomes.met & ~scenario.fails  # [N]
    attained = [float(met[kinds == kind].mean()) for kind in np.unique(kinds)]
    return {"loss": run.loss.total, "attainment": min(attained, default=1.0)}


@cache
def _bundle(folder: Path) -> Bundle:
    return Bundle.load(folder)
