"""Learn what weights cost the fleet's own requests, from where a model stands already.

Half of the worlds are stretches of history over again, half are regimes that the fleet never
had. In each, states that the present policy visits are examined (``training.regret.lessons``);
a copy of its network then learns from all of them, pulled toward where it came from.

Shapes: B lessons, C classes, T steps, F features.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from models.bundle import Bundle
from models.classes import TaskClass
from models.lstm import ResidualLstm
from models.window import Window
from training.closed_loop.controller import BundleController, Controller, Guard, RuleController
from training.online.anchor import Anchor
from training.online.fine_tune import ANCHOR_STRENGTH, SLOWER
from training.regret.batches import grouped
from training.regret.learn import LearnOptions, learn
from training.regret.lessons import Lesson, LessonOptions, World, lessons_of
from training.regret.rounds import pool_of
from training.rehearsal.traffic import own_traffic
from training.rehearsal.worlds import regime_worlds, replayed
from training.simulator.model import Fleet
from training.simulator.regimes import REGIMES
from training.stretches import LONGEST_STEPS

Advance = Callable[[str], None]
"""Called when a part is done, with what that was."""

FIRST_SEED = 100_000_000
"""No other worlds count this far."""
_SEEDS_EACH = 1000
_HOLDOUT = 5
"""Every so-many-th world is not learned from; odd, since every second one is a replay."""


@dataclass(frozen=True, slots=True)
class RehearsalOptions:
    """How much is rehearsed.

    Attributes:
        worlds: visited; at least two, of which one is held out.
        duration_s: of a regime's world, and at most of a replay.
        processes: that simulate. They change nothing but the time it takes.
    """

    worlds: int = 48
    duration_s: float = LONGEST_STEPS * 5.0
    processes: int = 2
    lessons: LessonOptions = field(default_factory=LessonOptions)
    learn: LearnOptions = field(default_factory=LearnOptions)

    @property
    def total(self) -> int:
        """How often ``advance`` is called."""
        return self.worlds + 1


@dataclass(frozen=True, slots=True, eq=False)
class Practice:
    """What there is to rehearse.

    Attributes:
        start: to go on from: the champion, or the release's model; None: there is nothing that has
            learned anything, the rule is examined.
        stretches: history to learn from.
        fleet: as it is calibrated.
        seed: of everything random.
    """

    start: Bundle | None
    classes: tuple[TaskClass, ...]
    stretches: Sequence[Window]
    fleet: Fleet
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class Rehearsed:
    """What came of it.

    Attributes:
        network: whose corrections to the rule are learned.
        regret: on worlds that were not learned from, against the policy that was examined;
            negative is better.
        epochs: ``train_objective``, ``holdout_objective`` and ``holdout_regret`` of each.
        features: [B, C, T, F] that it has seen.
    """

    network: ResidualLstm
    regret: float
    epochs: tuple[dict[str, float], ...]
    features: NDArray[np.float32]


def rehearse(
    practice: Practice, guard: Guard, options: RehearsalOptions, advance: Advance
) -> Rehearsed:
    """Examine the present policy in other processes, and learn from that in this one.

    Raises:
        FitDiverged: the objective was no number in any epoch.
    """
    examined: list[tuple[Lesson, ...]] = []
    with pool_of(options.processes) as pool:
        examination = Examination(practice.start, guard, options.lessons)
        for lessons in pool.map(examination, worlds_of(practice, options)):
            examined.append(lessons)
            advance("examining")
    learned, held_out = (
        [
            lesson
            for index, lessons in enumerate(examined)
            if (index % _HOLDOUT == 0) is held
            for lesson in lessons
        ]
        for held in (False, True)
    )
    start = practice.start
    result = learn(
        Bundle.untrained(practice.seed).network if start is None else start.network,
        grouped(learned),
        grouped(held_out),
        _options(options.learn, practice),
        anchor=None if start is None else _anchor(start, options.learn),
    )
    advance("learning")
    features = np.stack([lesson.features for lesson in chain(learned, held_out)])
    return Rehearsed(result.network, result.regret, result.epochs, features)


@dataclass(frozen=True, slots=True, eq=False)
class Examination:
    """What a process does with a world. Attributes: policy: None: the rule."""

    policy: Bundle | None
    guard: Guard
    options: LessonOptions

    def __call__(self, world: World) -> tuple[Lesson, ...]:
        """Its lessons."""
        controller: Controller = RuleController()
        if self.policy is not None:
            controller = BundleController(self.policy)
        return lessons_of(world, controller, self.guard, self.options)[1]


def worlds_of(practice: Practice, options: RehearsalOptions) -> list[World]:
    """Replays and regimes in turn."""
    first_seed = FIRST_SEED + practice.seed * _SEEDS_EACH
    traffic = own_traffic(practice.stretches, practice.classes, practice.fleet.engine)
    pieces = [piece for one in practice.stretches for piece in _pieces(one)]
    dice = np.random.default_rng(first_seed)
    replays = replayed(
        [pieces[index] for index in dice.permutation(len(pieces)).tolist()],
        practice.classes,
        practice.fleet,
        count=(options.worlds + 1) // 2,
        first_seed=first_seed,
    )
    names = sorted(REGIMES)
    regimes = [
        regime_worlds(
            names[number % len(names)],
            traffic,
            practice.fleet,
            count=number + 1,
            first_seed=first_seed,
            duration_s=options.duration_s,
        )[number]
        for number in range(options.worlds // 2)
    ]
    worlds: list[World] = []
    for number, replay in enumerate(replays):
        worlds += [replay, *regimes[number : number + 1]]
    return worlds


def _pieces(stretch: Window) -> list[Window]:
    """No longer than the longest stretch that is held out."""
    starts = range(0, stretch.steps, LONGEST_STEPS)
    return [stretch.between(at, min(at + LONGEST_STEPS, stretch.steps)) for at in starts]


def _options(options: LearnOptions, practice: Practice) -> LearnOptions:
    seeded = replace(options, seed=practice.seed)
    if practice.start is None:
        return seeded
    # The anchor takes the decay's place.
    return replace(seeded, learning_rate=options.learning_rate * SLOWER, weight_decay=0.0)


def _anchor(start: Bundle, options: LearnOptions) -> Anchor:
    """As strong as that of the forecast, in the unit of the regret."""
    return Anchor(start.network, ANCHOR_STRENGTH * options.penalties.violation)
