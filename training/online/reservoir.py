"""A bounded sample of all moments ever seen, in which the rare kinds keep their place.

Class-balancing reservoir sampling (A. Chrysakis and M.-F. Moens, "Online continual learning from
imbalanced data", ICML 2020, algorithm 1), its classes being our strata. Until it is full, each
moment is kept. Then one of a stratum that never was the largest takes a place of the largest;
one of a stratum that was takes a place of its own, with the probability that makes each of that
stratum's moments equally likely to be kept (Vitter's algorithm R).

A moment is a window and the step that followed: raw signals, so that whatever is made of them
(features, targets, states of the simulator) can be made anew when that changes.

What is kept follows from the seed and the moments offered, restarts or not: the dice for the
n-th offer are those of (seed, n).
"""

import json
import math
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.window import STEPS, Signal, Window
from training.errors import BadFile
from training.online.strata import Stratum, stratum

MOMENT_STEPS = STEPS + 1
CAPACITY = 2048
"""About 5 MB with five classes."""

_FORMAT = "trimtab reservoir 1"


@dataclass(frozen=True, slots=True)
class Kept:
    """A moment and its kind."""

    window: Window
    stratum: Stratum


class Reservoir:
    """The sample.

    Attributes:
        offered: moments ever offered.
        newest_end_unix_s: end of the newest of them; those that are no newer are not offered
            again by `offer_all`.
    """

    def __init__(self, capacity: int = CAPACITY, seed: int = 0) -> None:
        if capacity < 1:
            raise ValueError(f"a reservoir holds at least one moment, not {capacity}")
        self.offered = 0
        self.newest_end_unix_s = -math.inf
        self._capacity = capacity
        self._seed = seed
        self._kept: list[Kept] = []
        self._counts: Counter[Stratum] = Counter()
        self._seen: Counter[Stratum] = Counter()
        self._were_largest: set[Stratum] = set()

    def __len__(self) -> int:
        """How many moments are kept."""
        return len(self._kept)

    @property
    def moments(self) -> tuple[Window, ...]:
        """The windows kept, in no meaningful order."""
        return tuple(kept.window for kept in self._kept)

    @property
    def counts(self) -> Mapping[Stratum, int]:
        """How many are kept of each stratum."""
        return dict(self._counts)

    def offer_all(self, history: Window) -> None:
        """Offer every moment of a history that ends later than all offered before."""
        for stop in range(MOMENT_STEPS, history.steps + 1):
            moment = history.between(stop - MOMENT_STEPS, stop)
            if moment.end_unix_s > self.newest_end_unix_s:
                self.offer(moment)

    def offer(self, moment: Window) -> None:
        """Keep a moment, or not.

        Raises:
            ValueError: it has not ``MOMENT_STEPS`` steps.
        """
        if moment.steps != MOMENT_STEPS:
            raise ValueError(f"a moment has {MOMENT_STEPS} steps, not {moment.steps}")
        new = Kept(_rounded(moment), stratum(moment))
        self.offered += 1
        self.newest_end_unix_s = max(self.newest_end_unix_s, moment.end_unix_s)
        self._seen[new.stratum] += 1
        if len(self._kept) < self._capacity:
            self._add(new)
            return
        place = self._place_for(new.stratum, np.random.default_rng((self._seed, self.offered)))
        if place is not None:
            old, self._kept[place] = self._kept[place].stratum, new
            self._counts[new.stratum] += 1
            self._counts[old] -= 1
            if self._counts[old] == 0:
                del self._counts[old]

    def save(self, path: Path) -> None:
        """Write, whole or not at all.

        Raises:
            OSError: it can't be written.
        """
        header = {
            "format": _FORMAT,
            "capacity": self._capacity,
            "seed": self._seed,
            "offered": self.offered,
            "newest_end_unix_s": self.newest_end_unix_s,
            "seen": [[asdict(kind), count] for kind, count in sorted(self._seen.items())],
            "were_largest": [asdict(kind) for kind in sorted(self._were_largest)],
            "kept": [_described(kept) for kept in self._kept],
        }
        values = [_values(kept.window).ravel() for kept in self._kept]
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.new")
        with beside.open("wb") as file:
            np.savez_compressed(
                file,
                header=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8),
                values=np.concatenate(values) if values else np.empty(0, dtype=np.float32),
            )
        beside.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Reservoir":
        """Read what `save` wrote; nothing in the file is run.

        Raises:
            BadFile: it can't be read, or holds no reservoir of this format.
        """
        try:
            # Opened here: NumPy leaves a file open that turns out to be no archive.
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                header = json.loads(stored["header"].tobytes())
                return cls._restored(header, stored["values"])
        except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise BadFile(path, f"it holds no reservoir: {error}") from error

    @classmethod
    def _restored(cls, header: Mapping[str, Any], values: NDArray[np.float32]) -> "Reservoir":
        if header["format"] != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT!r}")
        restored = cls(header["capacity"], header["seed"])
        restored.offered = header["offered"]
        restored.newest_end_unix_s = header["newest_end_unix_s"]
        restored._seen = Counter({Stratum(**kind): count for kind, count in header["seen"]})
        restored._were_largest = {Stratum(**kind) for kind in header["were_largest"]}
        first = 0
        for described in header["kept"]:
            shape = (len(Signal), len(described["task_classes"]), MOMENT_STEPS)
            stop = first + math.prod(shape)
            restored._add(_undescribed(described, values[first:stop].reshape(shape)))
            first = stop
        return restored

    def _add(self, new: Kept) -> None:
        self._kept.append(new)
        self._counts[new.stratum] += 1

    def _place_for(self, kind: Stratum, dice: np.random.Generator) -> int | None:
        """Whose place a moment of this kind takes; None: it is not kept."""
        counts, most = self._counts, max(self._counts.values())
        largest = [one for one in sorted(counts) if counts[one] == most]
        self._were_largest.update(largest)
        if kind not in self._were_largest:
            return self._any_of(largest[int(dice.integers(len(largest)))], dice)
        if counts[kind] > 0 and dice.random() <= counts[kind] / self._seen[kind]:
            return self._any_of(kind, dice)
        return None

    def _any_of(self, kind: Stratum, dice: np.random.Generator) -> int:
        places = [place for place, kept in enumerate(self._kept) if kept.stratum == kind]
        return places[int(dice.integers(len(places)))]


def reindexed(window: Window, task_classes: tuple[str, ...]) -> Window:
    """The window with these classes: unknown where it has not seen one, others left out."""
    rows = [
        window.task_classes.index(name) if name in window.task_classes else None
        for name in task_classes
    ]
    unknown = np.full(window.steps, np.nan)
    signals = {
        signal: np.stack([unknown if row is None else values[row] for row in rows])
        for signal, values in window.signals.items()
    }
    return Window(window.end_unix_s, window.step_s, task_classes, signals)


def _values(window: Window) -> NDArray[np.float32]:
    """The signals in the order of `Signal`: [S, C, T]."""
    return np.stack([window.signals[signal] for signal in Signal], dtype=np.float32)


def _window(values: NDArray[np.float32], described: Mapping[str, Any]) -> Window:
    return Window(
        end_unix_s=described["end_unix_s"],
        step_s=described["step_s"],
        task_classes=tuple(described["task_classes"]),
        signals={signal: values[row].astype(np.float64) for row, signal in enumerate(Signal)},
    )


def _rounded(window: Window) -> Window:
    """As a file will give it back."""
    return _window(_values(window), _descriptor(window))


def _descriptor(window: Window) -> dict[str, Any]:
    return {
        "end_unix_s": window.end_unix_s,
        "step_s": window.step_s,
        "task_classes": list(window.task_classes),
    }


def _described(kept: Kept) -> dict[str, Any]:
    return {**_descriptor(kept.window), "stratum": asdict(kept.stratum)}


def _undescribed(described: Mapping[str, Any], values: NDArray[np.float32]) -> Kept:
    return Kept(_window(values, described), Stratum(**described["stratum"]))
