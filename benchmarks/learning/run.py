"""The whole comparison: tune, run all units, put together what was found."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.findings import Findings, SettingFindings
from benchmarks.learning.journal import Journal, Task, key_of
from benchmarks.learning.oracle import OracleOptions, Sweep
from benchmarks.learning.settings import Setting, name_of
from benchmarks.learning.statics import SearchOptions, Statics, Trial, search
from benchmarks.learning.units import LEARNED, Baselines, Learned, Result
from training.regret.candidates import Float

Begin = Callable[[str, int], Callable[[], None]]
"""Is told what is begun and in how many parts; what it gives is called after each of them."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long it takes.

    Attributes:
        units: seeds in each setting.
        duration_s: of each scenario.
    """

    units: int = 30
    duration_s: float = 400.0
    search: SearchOptions = field(default_factory=SearchOptions)
    oracle: OracleOptions = field(default_factory=OracleOptions)

    @classmethod
    def quick(cls) -> "Effort":
        """Enough to see that it works; too short to judge by."""
        return cls(
            units=2,
            duration_s=150.0,
            search=SearchOptions(first=12, near=1, radii=(0.4,), traces=2),
            oracle=OracleOptions(sweeps=(Sweep(6, 8),), candidates=10),
        )


@dataclass(frozen=True, slots=True)
class Model:
    """A bundle in a folder. Attributes: sha256: of its weights."""

    name: str
    folder: Path
    sha256: str


class Comparison:
    """Runs what is not in the journal yet, and says what came out.

    Args:
        settings: where.
        models: the first is the one that is judged, and has controls.
        effort: how long.
        seed: of the search; the units' seeds count from 0.
        journal: of results.
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        models: Sequence[Model],
        effort: Effort,
        *,
        seed: int,
        journal: Journal,
    ) -> None:
        self._settings = settings
        self._models = models
        self._effort = effort
        self._seed = seed
        self._journal = journal

    def run(self, pool: ProcessPoolExecutor, begin: Begin) -> Findings:
        """All of it. Ctrl-C leaves what is complete in the journal."""
        work = _Work(pool, self._journal, begin)
        statics = dict(self._tuned(work))
        effort = self._effort
        units = [(one, seed) for seed in range(effort.units) for one in self._settings]
        baselines: Sequence[Result] = work.done(
            "baselines and oracle",
            [Baselines(one, seed, statics[one], effort.oracle) for one, seed in units],
        )
        results = list(baselines)
        for number, model in enumerate(self._models):
            tasks = [
                Learned(one, seed, model.folder, model.sha256, controls=number == 0)
                for one, seed in units
            ]
            learned: Sequence[Result] = work.done(model.name, tasks)
            results = [
                before | _named(result, model.name if number else None)
                for before, result in zip(results, learned, strict=True)
            ]
        by_setting = defaultdict(list)
        for (one, _seed), result in zip(units, results, strict=True):
            by_setting[one].append(result)
        found = (
            SettingFindings.of(name_of(one), one.regime, str(one.late), own)
            for one, own in by_setting.items()
        )
        return Findings(self._models[0].name, tuple(found))

    def _tuned(self, work: "_Work") -> Iterator[tuple[Setting, Statics]]:
        """The static weights of each setting, from searches over those with the same classes."""
        groups = defaultdict(list)
        for one in self._settings:
            groups[one.classes].append(one)
        options = self._effort.search

        def losses(group: Sequence[Setting], log_shares: Float) -> Float:
            candidates = tuple(tuple(row) for row in log_shares.tolist())
            tasks = [Trial(one, candidates, options.traces) for one in group]
            return np.array(work.done("tuning static weights", tasks)).T  # [K, R]

        for group in groups.values():
            yield from zip(group, search(group, losses, options, seed=self._seed), strict=True)


@dataclass(frozen=True, slots=True)
class _Work:
    """Does tasks, each only once."""

    pool: ProcessPoolExecutor
    journal: Journal
    begin: Begin

    def done(self, what: str, tasks: Sequence[Task]) -> list[Any]:
        """The results, in the order of the tasks."""
        keys = [key_of(task) for task in tasks]
        futures = {
            self.pool.submit(task): key
            for task, key in zip(tasks, keys, strict=True)
            if key not in self.journal
        }
        advance = self.begin(what, len(futures))
        for future in as_completed(futures):
            self.journal.add(futures[future], future.result())
            advance()
        return [self.journal[key] for key in keys]


def _named(result: Result, name: str | None) -> Result:
    """A further model's result under that model's name."""
    return result if name is None else {name: result[LEARNED]}
