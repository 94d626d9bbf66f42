"""Where policies are compared: regimes at a load, each with either late policy.

The classes are the simulator's reference. Their objective for the pace, 0.1 s a token, is about
what one full step takes on the reference engine (256 prompt tokens and a dozen decodes): it is
missed by a hair when steps are full. Here it is two such steps, as an operator would have it who
asks for what the engine can give. The other objectives stay.

Loads are relative to what the fleet serves of the mix when it always has enough. Up to 0.9
of it, a steady load is met in time by any sensible weights; where no load is given by the regime's
own definition, it is chosen so that requests compete.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Protocol

import numpy as np

from models.classes import LatePolicy, TaskClass
from training.simulator.calibration import REFERENCE_ENGINE
from training.simulator.course import Course
from training.simulator.model import Fleet
from training.simulator.play import capacity_requests_per_s
from training.simulator.regimes import draw_scenario
from training.simulator.scenario import Scenario
from training.simulator.traffic import REFERENCE, ClassTraffic

SLOWER = 2.0
"""By how much the engine gets slower under service drift."""
FLEET = Fleet(REFERENCE_ENGINE.engine)
FIRST_TRAINING_SEED = 1_000_000
"""From here on seeds are for tuning; policies are compared on those below."""


class Setting(Protocol):
    """Where policies are compared. Its value can be hashed and sent to another process."""

    @property
    def regime(self) -> str:
        """What happens."""

    @property
    def late(self) -> LatePolicy:
        """Of all classes."""

    @property
    def classes(self) -> tuple[TaskClass, ...]:
        """Those of all its scenarios."""

    def scenario(self, seed: int) -> Scenario:
        """What happens under a seed: the same whatever the late policy."""


def name_of(setting: Setting) -> str:
    """In tables and files."""
    return f"{setting.regime}/{setting.late}"


@dataclass(frozen=True, slots=True)
class Regime:
    """What happens. Attributes: drawn_as: of the simulator's; load: of the fleet's capacity."""

    drawn_as: str
    load: float


_SERVICE_DRIFT = "service-drift"
REGIMES: Mapping[str, Regime] = MappingProxyType(
    {
        "stationary-0.6": Regime("stationary", 0.6),
        "stationary-0.9": Regime("stationary", 0.9),
        "mix-shift": Regime("mix-shift", 1.0),
        "flash-crowd": Regime("flash-crowd", 0.9),
        _SERVICE_DRIFT: Regime("stationary", 0.6),
        "length-drift": Regime("length-drift", 0.9),
        "error-burst": Regime("error-burst", 0.9),
        "new-class": Regime("new-class", 1.1),
    }
)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A regime of the simulator's on the reference classes."""

    regime: str
    late: LatePolicy
    duration_s: float

    @property
    def classes(self) -> tuple[TaskClass, ...]:
        """The reference's."""
        return tuple(one.task_class for one in traffic_with(self.late))

    def scenario(self, seed: int) -> Scenario:
        """What happens under a seed."""
        regime = REGIMES[self.regime]
        scenario = draw_scenario(
            regime.drawn_as,
            traffic_with(self.late),
            requests_per_s=regime.load * _capacity_per_s(),
            duration_s=self.duration_s,
            seed=seed,
        )
        drifts = self.regime == _SERVICE_DRIFT
        return replace(scenario, step_time=self._slower(seed)) if drifts else scenario

    def _slower(self, seed: int) -> Course:
        """Over a quarter of the time, from a time that the seed draws, and for good."""
        start_s = np.random.default_rng([seed, 0x5D]).uniform(0.2, 0.5) * self.duration_s
        return Course.change(start_s, self.duration_s / 4, 1.0, SLOWER)


def traffic_with(late: LatePolicy) -> Sequence[ClassTraffic]:
    """The reference classes under a late policy."""
    return tuple(replace(one, task_class=replace(one.task_class, late=late)) for one in REFERENCE)


def settings(duration_s: float) -> list[Setting]:
    """Of all regimes that are drawn, with either late policy."""
    return [Drawn(regime, late, duration_s) for regime in REGIMES for late in LatePolicy]


@cache
def _capacity_per_s() -> float:
    return capacity_requests_per_s(FLEET, REFERENCE)
