"""Worlds to learn in: classes, a fleet, and a regime, all drawn from one seed.

A model that is shipped meets classes that nobody knows yet. So it learns on many sets of
them, each of the kinds that are met: people who wait for a first token, people who
read along, long documents, and work that can wait.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from models.classes import LatePolicy, Slo, TaskClass, Tier
from training.simulator.calibration import REFERENCE_ENGINE
from training.simulator.lengths import Independent, Lognormal
from training.simulator.model import Fleet
from training.simulator.play import capacity_requests_per_s
from training.simulator.regimes import REGIMES, draw_scenario
from training.simulator.scenario import Scenario
from training.simulator.traffic import REFERENCE, ClassTraffic

CALIBRATION = REFERENCE_ENGINE
"""Of the engines of all worlds."""

MOST_CLASSES = 5
LEAST_LOAD, MOST_LOAD = 0.7, 1.25
"""Of the fleet's capacity, before what the regime adds to it. Where less is asked, nothing is lost
whatever the weights, and nothing to be learned."""


@dataclass(frozen=True)
class World:
    """One scenario, and the other requests that could come in it.

    Attributes:
        load: relative to the fleet's capacity.
        seed: of the scenario.
    """

    regime: str
    traffic: tuple[ClassTraffic, ...]
    fleet: Fleet
    load: float
    duration_s: float
    seed: int

    @cached_property
    def requests_per_s(self) -> float:
        """Of all classes, before what the regime does to it."""
        return self.load * capacity_requests_per_s(self.fleet, self.traffic)

    def scenario(self, future: int | None = None) -> Scenario:
        """What happens; with a number, the same with other requests."""
        return draw_scenario(
            self.regime,
            self.traffic,
            requests_per_s=self.requests_per_s,
            duration_s=self.duration_s,
            seed=self.seed,
            future=future,
        )


def draw_world(seed: int, duration_s: float) -> World:
    """A world: a regime, a load, and in two of three cases classes of its own.

    The others are the reference's classes, late ones served or demoted.
    """
    rng = np.random.default_rng([seed, 0x77])
    names = sorted(REGIMES)
    drawn = rng.random() < 2 / 3
    return World(
        regime=names[int(rng.integers(len(names)))],
        traffic=draw_traffic(rng) if drawn else _reference(rng),
        fleet=Fleet(CALIBRATION.engine),
        load=float(rng.uniform(LEAST_LOAD, MOST_LOAD)),
        duration_s=duration_s,
        seed=seed,
    )


def draw_traffic(rng: np.random.Generator) -> tuple[ClassTraffic, ...]:
    """Two to five classes, each of one of the kinds."""
    count = int(rng.integers(2, MOST_CLASSES + 1))
    late = _late(rng)
    return tuple(
        _draw_class(f"class-{number}", _KINDS[int(rng.integers(len(_KINDS)))], late, rng)
        for number in range(count)
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    """The middle of what a kind of class is like."""

    ttft_s: float
    tpot_s: float | None
    value: float
    prompt_tokens: float
    output_tokens: float
    tier: Tier


_KINDS = (
    _Kind(1.5, None, 6.0, 80, 10, Tier.P0),
    _Kind(2.0, 0.2, 4.0, 120, 24, Tier.P1),
    _Kind(10.0, None, 3.0, 800, 8, Tier.P1),
    _Kind(25.0, None, 1.0, 250, 24, Tier.P2),
)
_SPREAD = 0.4
"""Of the logarithm of each number."""


def _draw_class(
    name: str, kind: _Kind, late: LatePolicy | None, rng: np.random.Generator
) -> ClassTraffic:
    def around(middle: float) -> float:
        return middle * math.exp(_SPREAD * rng.normal())

    slo = Slo(around(kind.ttft_s), None if kind.tpot_s is None else around(kind.tpot_s))
    task_class = TaskClass(
        name,
        slo,
        value=around(kind.value),
        late=_late(rng) if late is None else late,
        max_wait_s=around(max(30.0, 4 * slo.ttft_s)) if rng.random() < 0.5 else None,  # noqa: PLR2004 - a coin
        tier=kind.tier,
    )
    prompts = Lognormal(around(kind.prompt_tokens), rng.uniform(0.3, 0.8), 4096)
    outputs = Lognormal(around(kind.output_tokens), rng.uniform(0.3, 0.6), 256)
    return ClassTraffic(task_class, around(1.0), Independent(prompts, outputs))


def _late(rng: np.random.Generator) -> LatePolicy:
    return LatePolicy.SERVE if rng.random() < 0.5 else LatePolicy.DEMOTE  # noqa: PLR2004 - a coin


def _reference(rng: np.random.Generator) -> tuple[ClassTraffic, ...]:
    late = _late(rng)
    return tuple(replace(one, task_class=replace(one.task_class, late=late)) for one in REFERENCE)
