"""Gather what the gates look at: both models through old regimes and held-out history."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from models.bundle import Bundle
from models.classes import TaskClass
from models.features import schema_hash
from models.window import Window
from training.closed_loop.controller import Guard
from training.gate import Comparison, Evidence, Paired
from training.regret.rounds import pool_of
from training.rehearsal.traffic import own_traffic
from training.rehearsal.worlds import regime_worlds, replayed
from training.simulator.calibration import Calibration
from training.simulator.model import Fleet
from training.simulator.regimes import REGIMES
from training.trials.pair import Contest, Pair, World

Advance = Callable[[str], None]
"""Called when a pair is done, with what it is of."""

REPLAY = "replay"
FIRST_REGIME_SEED = 20_000_000
"""Fixed, so that every candidate meets the same scenarios; no training counts this far."""
FIRST_REPLAY_SEED = 30_000_000


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """How much is compared.

    Attributes:
        pairs: on each old regime; of the held-out history so many times as many as
            ``replay_factor`` says, since there a difference must be beyond doubt.
        duration_s: of a regime's scenario.
        processes: that simulate. They change nothing but the time it takes.
    """

    pairs: int = 20
    replay_factor: int = 3
    duration_s: float = 300.0
    processes: int = 2

    @property
    def total(self) -> int:
        """How many pairs, all in all."""
        return self.pairs * (len(REGIMES) + self.replay_factor)


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A candidate, and all that it is judged by.

    Attributes:
        champion: what serves; None: the rule does.
        learned: history, by which the classes' traffic in the old regimes goes.
        held_out: history that the candidate did not learn from.
        fleet: as it is calibrated.
        newest: the newest calibration of the fleet.
    """

    candidate: Bundle
    champion: Bundle | None
    classes: tuple[TaskClass, ...]
    learned: Sequence[Window]
    held_out: Sequence[Window]
    fleet: Fleet
    newest: Calibration


def gather(case: Case, guard: Guard, options: TrialOptions, advance: Advance) -> Evidence:
    """Steer both models through all worlds, in other processes.

    Raises:
        ValueError: nothing is held out.
    """
    if not case.held_out:
        raise ValueError("no history was held out to judge by")
    contest = Contest(case.champion, case.candidate, guard)
    worlds = _worlds(case, options)
    found: dict[str, list[Pair]] = {name: [] for name in worlds}
    named = [(name, world) for name, own in worlds.items() for world in own]
    with pool_of(options.processes) as pool:
        pairs = pool.map(contest, (world for _, world in named))
        for (name, _), pair in zip(named, pairs, strict=True):
            found[name].append(pair)
            advance(name)
    every = [pair for pairs in found.values() for pair in pairs]
    return Evidence(
        schema_hash=case.candidate.schema_hash,
        serving_schema_hash=schema_hash(),
        calibration_hash=Calibration(case.fleet.engine, "compared on").hash,
        current_calibration_hash=case.newest.hash,
        outputs_checked=sum(pair.outputs for pair in every),
        outputs_not_finite=sum(pair.not_finite for pair in every),
        regimes=tuple(_comparison(name, found[name]) for name in REGIMES),
        replay=_comparison(REPLAY, found[REPLAY]),
    )


def _worlds(case: Case, options: TrialOptions) -> dict[str, Sequence[World]]:
    traffic = own_traffic(case.learned, case.classes, case.fleet.engine)
    worlds: dict[str, Sequence[World]] = {
        name: regime_worlds(
            name,
            traffic,
            case.fleet,
            count=options.pairs,
            first_seed=FIRST_REGIME_SEED,
            duration_s=options.duration_s,
        )
        for name in REGIMES
    }
    worlds[REPLAY] = replayed(
        case.held_out,
        case.classes,
        case.fleet,
        count=options.pairs * options.replay_factor,
        first_seed=FIRST_REPLAY_SEED,
    )
    return worlds


def _comparison(name: str, pairs: Sequence[Pair]) -> Comparison:
    def both(quantity: str) -> Paired:
        return Paired(
            tuple(getattr(pair.champion, quantity) for pair in pairs),
            tuple(getattr(pair.candidate, quantity) for pair in pairs),
        )

    return Comparison(name, both("loss"), both("worst_attainment_ratio"), both("tokens_per_s"))
