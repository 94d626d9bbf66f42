"""Arrival plans: who asks for what, and when, from a seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TrafficClass:
    """How one task class asks: its share of the requests and their lengths.

    Attributes:
        share: of all requests, in (0, 1].
        prompt_tokens: least and most, drawn uniformly.
        output_tokens: least and most, drawn uniformly.
    """

    share: float
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Burst:
    """A stretch of the plan at another load level, in seconds from its start."""

    start_s: float
    end_s: float
    load: float


@dataclass(frozen=True, slots=True)
class LoadShape:
    """Load over time, as a multiple of the engine's measured capacity."""

    duration_s: float
    steady_load: float
    bursts: Sequence[Burst] = field(default=())

    def load_at(self, at_s: float) -> float:
        """Load at ``at_s``; the first burst that covers it wins."""
        for burst in self.bursts:
            if burst.start_s <= at_s < burst.end_s:
                return burst.load
        return self.steady_load

    @property
    def peak_load(self) -> float:
        """Highest load of the plan."""
        return max([self.steady_load, *(burst.load for burst in self.bursts)])


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a plan."""

    at_s: float
    task_class: str
    prompt_tokens: int
    output_tokens: int


def poisson_arrivals(
    traffic: Mapping[str, TrafficClass],
    shape: LoadShape,
    *,
    capacity_requests_per_s: float,
    seed: int,
) -> tuple[Arrival, ...]:
    """Draw an inhomogeneous Poisson plan by thinning (Lewis and Shedler, 1979).

    The rate at time t is ``shape.load_at(t) * capacity_requests_per_s``, split
    over the classes by their shares.
    """
    rng = np.random.default_rng(seed)
    peak_per_s = shape.peak_load * capacity_requests_per_s
    arrivals: list[Arrival] = []
    at_s = rng.exponential(1 / peak_per_s)
    while at_s < shape.duration_s:
        if rng.random() * shape.peak_load < shape.load_at(at_s):
            arrivals.append(_draw(traffic, at_s, rng))
        at_s += rng.exponential(1 / peak_per_s)
    return tuple(arrivals)


def simultaneous_arrivals(
    traffic: Mapping[str, TrafficClass], count: int, *, seed: int | Sequence[int]
) -> tuple[Arrival, ...]:
    """About ``count`` requests of the mix that all arrive at once, in random order.

    Each class has its exact share and its lengths lie evenly over their range, so
    that the work does not depend on the luck of a draw.
    """
    total = sum(kind.share for kind in traffic.values())
    arrivals = [
        arrival
        for name, kind in traffic.items()
        for arrival in _evenly(name, kind, max(1, round(count * kind.share / total)))
    ]
    order = np.random.default_rng(seed).permutation(len(arrivals))
    return tuple(arrivals[position] for position in order)


def _evenly(name: str, kind: TrafficClass, count: int) -> list[Arrival]:
    lengths = zip(
        np.linspace(*kind.prompt_tokens, count).round().astype(int).tolist(),
        np.linspace(*kind.output_tokens, count).round().astype(int).tolist(),
        strict=True,
    )
    return [Arrival(0.0, name, prompt, output) for prompt, output in lengths]


def _draw(traffic: Mapping[str, TrafficClass], at_s: float, rng: np.random.Generator) -> Arrival:
    names = list(traffic)
    shares: NDArray[np.float64] = np.array([traffic[name].share for name in names])
    name = names[rng.choice(len(names), p=shares / shares.sum())]
    kind = traffic[name]
    return Arrival(
        at_s=float(at_s),
        task_class=name,
        prompt_tokens=int(rng.integers(*kind.prompt_tokens, endpoint=True)),
        output_tokens=int(rng.integers(*kind.output_tokens, endpoint=True)),
    )
