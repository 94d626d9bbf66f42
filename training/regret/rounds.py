"""Rounds: examine what the policy of the round before does, learn from all rounds, go on.

A policy that is trained on the states of another meets states that the other never saw. So
each round visits the states of the newest policy, and its lessons come to those
of all rounds before: dataset aggregation (S. Ross, G. Gordon and D. Bagnell, "A reduction of
imitation learning and structured prediction to no-regret online learning", AISTATS 2011).

Every round is on disk when it is done, so a training that is stopped goes on from there.
"""

import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path

import torch

from models.bundle import MANIFEST_FILE, Bundle, Provenance
from models.features import schema_hash
from training.closed_loop.controller import BundleController, Guard, RuleController
from training.errors import OtherTraining
from training.regret.batches import Batch, grouped, load, ranges_of, save
from training.regret.learn import LearnOptions, learn
from training.regret.lessons import Lesson, LessonOptions, lessons_of
from training.regret.worlds import CALIBRATION, draw_world

Advance = Callable[[str], None]
"""Called when a part is done, with what that was."""

ORIGIN = "regret"
_OPTIONS_FILE = "options.json"


@dataclass(frozen=True, slots=True)
class RoundOptions:
    """What is trained on.

    Attributes:
        rounds: of visits and a fit each.
        worlds: visited in each round.
        holdout: every so-many-th world is not learned from.
        duration_s: of each world.
        seed: of the first world, the initial weights and the order; worlds count on from it.
    """

    rounds: int = 4
    worlds: int = 110
    holdout: int = 6
    duration_s: float = 400.0
    seed: int = 0
    lessons: LessonOptions = field(default_factory=LessonOptions)
    learn: LearnOptions = field(default_factory=LearnOptions)


class Training:
    """A training in a folder.

    Args:
        folder: of its state; a training with the same options that was begun there goes on.
        guard: what stands between a policy and the engines.
        processes: how many examine worlds. They change nothing but the time it takes.

    Raises:
        OtherTraining: the folder holds one with other options.
    """

    def __init__(
        self, folder: Path, options: RoundOptions, guard: Guard, *, processes: int
    ) -> None:
        self._folder = folder
        self._options = options
        self._guard = guard
        self._processes = processes
        _claim(folder, options)

    @property
    def done(self) -> int:
        """Rounds that are complete."""
        done = 0
        while (self._bundle_folder(done) / MANIFEST_FILE).exists():
            done += 1
        return done

    @property
    def parts(self) -> int:
        """How often ``advance`` is called in a whole training: each world, and each fit."""
        return self._options.rounds * (self._options.worlds + 1)

    @property
    def parts_done(self) -> int:
        """As many calls as are spared."""
        examined = sum(
            self._lessons_path(number).exists() for number in range(self._options.rounds)
        )
        return examined * self._options.worlds + self.done

    def policy(self, rounds: int) -> Bundle:
        """After so many rounds; of none, the untrained one.

        Raises:
            ModelError: its files are missing or changed.
        """
        if rounds == 0:
            return Bundle.untrained(self._options.seed)
        return Bundle.load(self._bundle_folder(rounds - 1))

    def run(self, advance: Advance) -> Bundle:
        """Do the rounds that are left; the last policy. Ctrl-C leaves those that are done.

        Raises:
            FitDiverged: the objective became no number.
        """
        with pool_of(self._processes) as pool:
            for number in range(self.done, self._options.rounds):
                self._round(number, pool, advance)
        return self.policy(self._options.rounds)

    def _round(self, number: int, pool: ProcessPoolExecutor, advance: Advance) -> None:
        path = self._lessons_path(number)
        if not path.exists():
            examined = self._examined(number, pool, advance)
            for held_out in (False, True):
                own = [
                    lesson
                    for index, lessons in enumerate(examined)
                    if (index % self._options.holdout == 0) is held_out
                    for lesson in lessons
                ]
                save(grouped(own), self._lessons_path(number, held_out=held_out))
        policy = self.policy(number)
        learned = learn(
            policy.network,
            self._lessons(number, held_out=False),
            self._lessons(number, held_out=True),
            self._options.learn,
        )
        bundle = Bundle(
            learned.network,
            Provenance(ORIGIN, self._options.seed, calibration_hash=CALIBRATION.hash),
            ranges=ranges_of(self._lessons(number, held_out=False)),
        )
        bundle.save(self._bundle_folder(number))
        advance(f"round {number + 1}: hold-out regret {learned.regret:+.4f}")

    def _examined(
        self, number: int, pool: ProcessPoolExecutor, advance: Advance
    ) -> list[tuple[Lesson, ...]]:
        options = self._options
        first = options.seed + number * options.worlds
        weights = self.policy(number).network.state_dict() if number else None
        task = _Examination(weights, self._guard, options)
        examined = []
        for lessons in pool.map(task, range(first, first + options.worlds)):
            examined.append(lessons)
            advance(f"round {number + 1}: examining")
        return examined

    def _lessons(self, number: int, *, held_out: bool) -> list[Batch]:
        """Of the rounds up to this one."""
        return [
            group
            for earlier in range(number + 1)
            for group in load(self._lessons_path(earlier, held_out=held_out))
        ]

    def _lessons_path(self, number: int, *, held_out: bool = True) -> Path:
        """The part that is held out is written last."""
        return self._folder / f"round-{number:02d}-{'holdout' if held_out else 'lessons'}.npz"

    def _bundle_folder(self, number: int) -> Path:
        return self._folder / f"round-{number:02d}"


@dataclass(frozen=True, slots=True)
class _Examination:
    """What a process does with a world. Attributes: weights: of the network; None: the rule."""

    weights: dict[str, torch.Tensor] | None
    guard: Guard
    options: RoundOptions

    def __call__(self, seed: int) -> tuple[Lesson, ...]:
        world = draw_world(seed, self.options.duration_s)
        controller = RuleController() if self.weights is None else _controller(self.weights)
        return lessons_of(world, controller, self.guard, self.options.lessons)[1]


@contextmanager
def pool_of(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Processes with one thread each; left in a hurry, they do not finish what is queued."""
    pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=_settle)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _settle() -> None:
    """Ctrl-C is for the process that waits for this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _controller(weights: dict[str, torch.Tensor]) -> BundleController:
    bundle = Bundle.untrained()
    bundle.network.load_state_dict(weights)
    return BundleController(bundle)


def _claim(folder: Path, options: RoundOptions) -> None:
    """Write the options into a new folder, or compare them with those that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _OPTIONS_FILE
    own = json.dumps({"schema": schema_hash(), **asdict(options)}, indent=2, sort_keys=True)
    if not path.exists():
        path.write_text(own + "\n", encoding="utf-8")
    elif path.read_text(encoding="utf-8").strip() != own:
        raise OtherTraining(folder)
