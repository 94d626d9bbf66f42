"""Regimes: what can happen to a fleet, each as a scenario drawn from a seed.

A regime says how load, lengths, the engine's speed and errors go over time. The seed draws
whom it hits, when and how hard, and then the requests: each class from a stream of its own,
so that the same seed gives the same requests of a class whatever the others do.

Shapes: C classes, N requests.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from training.simulator.course import Course
from training.simulator.lengths import whole_tokens
from training.simulator.scenario import Scenario
from training.simulator.traffic import ClassTraffic, arrivals_s, shares
from training.simulator.workload import Workload

RETRIES = 2
"""A client asks again this often after an error, ..."""
RETRY_AFTER_S = 1.0
"""... first after about this long, then after twice as long, as clients of the API do."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What happens over time; all courses are flat at 1, and ``failing`` at 0, in a quiet fleet.

    Attributes:
        load: [C] factors on the classes' arrival rates.
        length: [C] factors on their prompts and answers.
        step_time: factor on the engine's step time.
        failing: share of the attempts that end in an error.
    """

    load: tuple[Course, ...]
    length: tuple[Course, ...]
    step_time: Course
    failing: Course

    @classmethod
    def quiet(cls, classes: int) -> "Conditions":
        """Nothing happens."""
        flat = (Course.flat(),) * classes
        return cls(load=flat, length=flat, step_time=Course.flat(), failing=Course.flat(0.0))


Regime = Callable[[Sequence[ClassTraffic], float, np.random.Generator], Conditions]
"""Draws the conditions of a scenario for these classes and of this duration in seconds."""


def stationary(
    traffic: Sequence[ClassTraffic], _duration_s: float, _rng: np.random.Generator
) -> Conditions:
    """Poisson arrivals at a constant load."""
    return Conditions.quiet(len(traffic))


def mix_shift(
    traffic: Sequence[ClassTraffic], duration_s: float, rng: np.random.Generator
) -> Conditions:
    """The classes exchange their shares at equal total work, within a twentieth of the time."""
    share = shares(traffic)  # [C]
    work = np.array([kind.work_tokens for kind in traffic])  # [C]
    after = np.roll(share, rng.integers(1, max(2, len(traffic))))  # [C]
    after *= (share @ work) / (after @ work)
    start_s = rng.uniform(0.3, 0.5) * duration_s
    load = tuple(
        Course.change(start_s, duration_s / 20, 1.0, factor) for factor in (after / share).tolist()
    )
    return replace(Conditions.quiet(len(traffic)), load=load)


def flash_crowd(
    traffic: Sequence[ClassTraffic], duration_s: float, rng: np.random.Generator
) -> Conditions:
    """One class asks so much more often that the work is 1.4 to 2 times as much, for a while.

    That comes within a hundredth of the time, and calms down slowly.
    """
    start_s = rng.uniform(0.2, 0.5) * duration_s
    stop_s = start_s + rng.uniform(0.1, 0.2) * duration_s
    hit = int(rng.integers(len(traffic)))
    work = shares(traffic) * np.array([kind.work_tokens for kind in traffic])  # [C]
    height = 1 + rng.uniform(0.4, 1.0) * work.sum() / work[hit]
    crowd = Course.pulse(start_s, stop_s, height, rise_s=0.01 * duration_s, fall_s=0.1 * duration_s)
    return replace(Conditions.quiet(len(traffic)), load=_only(traffic, hit, crowd))


def diurnal(
    traffic: Sequence[ClassTraffic], duration_s: float, rng: np.random.Generator
) -> Conditions:
    """One day in the scenario's time; the classes' peaks are up to a quarter of it apart."""
    dawn = rng.random()
    load = tuple(
        Course.cycle(duration_s, duration_s, depth=0.6, phase=(dawn + offset) % 1)
        for offset in rng.uniform(0, 0.25, len(traffic)).tolist()
    )
    return replace(Conditions.quiet(len(traffic)), load=load)


def service_drift(
    traffic: Sequence[ClassTraffic], duration_s: float, rng: np.random.Generator
) -> Conditions:
    """The engine gets 1.2 to 1.8 times as slow over a quarter of the time, and stays so."""
    start_s = rng.uniform(0.2, 0.5) * duration_s
    slower = Course.change(start_s, duration_s / 4, 1.0, rng.uniform(1.2, 1.8))
    return replace(Conditions.quiet(len(traffic)), step_time=slower)


def length_drift(
    traffic: Sequence[ClassTraffic], duration_s: float, rng: np.random.Generator
) -> Conditions:
    """Prompts and answers of one class get 1.5 to 3 times as long over a third of the time."""
    start_s = rng.uniform(0.2, 0.4) * duration_s
    longer = Course.change(start_s, duration_s / 3, 1.0, rng.uniform(1.5, 3.0))
    return replace(
        Conditions.quiet(len(traffic)),
        length=_only(traffic, int(rng.integers(len(traffic))), longer),
    )


def error_burst(
    traffic: Sequence[ClassTraffic], duration_s: float, rng: np.random.Generator
) -> Conditions:
    """For a while a third to two thirds of the attempts fail, and clients ask again."""
    start_s = rng.uniform(0.2, 0.5) * duration_s
    stop_s = start_s + rng.uniform(0.1, 0.2) * duration_s
    share = rng.uniform(1 / 3, 2 / 3)
    failing = Course(
        (start_s, start_s + 0.1, stop_s, stop_s + 0.1),
        (0.0, share, share, 0.0),
    )
    return replace(Conditions.quiet(len(traffic)), failing=failing)


def new_class(
    traffic: Sequence[ClassTraffic], duration_s: float, rng: np.random.Generator
) -> Conditions:
    """One class does not ask at all at first."""
    start_s = rng.uniform(0.3, 0.5) * duration_s
    appears = Course.change(start_s, 0.0, 0.0, 1.0)
    return replace(
        Conditions.quiet(len(traffic)),
        load=_only(traffic, int(rng.integers(len(traffic))), appears),
    )


REGIMES: Mapping[str, Regime] = MappingProxyType(
    {
        "stationary": stationary,
        "mix-shift": mix_shift,
        "flash-crowd": flash_crowd,
        "diurnal": diurnal,
        "service-drift": service_drift,
        "length-drift": length_drift,
        "error-burst": error_burst,
        "new-class": new_class,
    }
)


def draw_scenario(
    name: str,
    traffic: Sequence[ClassTraffic],
    *,
    requests_per_s: float,
    duration_s: float,
    seed: int,
    future: int | None = None,
) -> Scenario:
    """One scenario of a regime.

    Args:
        name: a key of ``REGIMES``.
        traffic: the classes.
        requests_per_s: of all classes, where the conditions' factors are 1.
        duration_s: how long requests go on to arrive.
        seed: of everything random.
        future: draws other requests under the same conditions, for each number others;
            None: those of the scenario itself.

    Raises:
        KeyError: no regime has that name.
    """
    *class_seeds, seed_of_conditions = np.random.SeedSequence(seed).spawn(len(traffic) + 1)
    conditions = REGIMES[name](traffic, duration_s, np.random.default_rng(seed_of_conditions))
    if future is not None:
        class_seeds = np.random.SeedSequence([seed, future]).spawn(len(traffic))
    rates_per_s = requests_per_s * shares(traffic)  # [C]
    drawn = [
        _draw_class(
            index,
            kind,
            rate_per_s,
            conditions,
            duration_s=duration_s,
            rng=np.random.default_rng(class_seeds[index]),
        )
        for index, (kind, rate_per_s) in enumerate(zip(traffic, rates_per_s.tolist(), strict=True))
    ]
    arrival_s, class_index, prompts, outputs, fails = (
        np.concatenate(column) for column in zip(*drawn, strict=True)
    )  # each [N]
    classes = [kind.task_class for kind in traffic]
    return Scenario(
        name=name,
        workload=Workload.in_order(arrival_s, class_index, prompts, outputs, classes),
        duration_s=duration_s,
        step_time=conditions.step_time,
        fails=fails[np.argsort(arrival_s, kind="stable")],
    )


_Columns = tuple[
    NDArray[np.float64], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]
]


def _draw_class(
    index: int,
    kind: ClassTraffic,
    rate_per_s: float,
    conditions: Conditions,
    *,
    duration_s: float,
    rng: np.random.Generator,
) -> _Columns:
    """A class's columns: arrival, class, prompt, output, whether it fails."""
    at_s = arrivals_s(rate_per_s, conditions.load[index], duration_s, rng)
    factor = conditions.length[index].at(at_s)
    prompts, outputs = kind.lengths.draw(rng, len(at_s))
    origin, attempt_s, fails = _attempts(at_s, conditions.failing, rng)
    prompt_tokens = whole_tokens(prompts * factor)[origin]
    # An error comes in place of the answer: the engine has computed the prompt by then.
    output_tokens = np.where(fails, 1, whole_tokens(outputs * factor)[origin]).astype(np.int32)
    class_index = np.full(len(origin), index, dtype=np.int32)
    return attempt_s, class_index, prompt_tokens, output_tokens, fails


def _attempts(
    at_s: NDArray[np.float64], failing: Course, rng: np.random.Generator
) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.bool_]]:
    """Each request's first attempt, and further ones for as long as it fails.

    An open list can't know when an error will come; the pause is counted from the arrival of
    the attempt before.

    Returns:
        Of each attempt: the request's row, when it arrives, whether it fails.
    """
    origin = np.arange(len(at_s))
    rounds = []
    for attempt in range(RETRIES + 1):
        fails = rng.random(len(at_s)) < failing.at(at_s)
        rounds.append((origin, at_s, fails))
        pause_s = RETRY_AFTER_S * 2.0**attempt * rng.uniform(0.5, 1.5, int(fails.sum()))
        origin, at_s = origin[fails], at_s[fails] + pause_s
    columns = zip(*rounds, strict=True)
    origins, times_s, failures = (np.concatenate(column) for column in columns)
    return origins, times_s, failures


def _only(traffic: Sequence[ClassTraffic], hit: int, course: Course) -> tuple[Course, ...]:
    """The course for the class that is hit, and nothing for the others."""
    return tuple(course if index == hit else Course.flat() for index in range(len(traffic)))
