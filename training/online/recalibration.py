"""Keeping the simulator's calibration true from one retraining to the next.

Engines report sums over all their steps since they started. The difference between two
readings is of the steps in between: so the window over which the calibration is fitted slides
from one retraining to the next, its prior being the calibration of the one before.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from training.errors import BadFile
from training.simulator.calibration import Calibration
from training.simulator.online import OnlineCalibration
from training.simulator.step_fit import StepSums


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What the engines reported at one time.

    Attributes:
        engines: sums since each engine started, by its id.
    """

    unix_s: float
    engines: Mapping[str, StepSums]

    def save(self, path: Path) -> None:
        """Write, whole or not at all.

        Raises:
            OSError: it can't be written.
        """
        engines = {
            name: {
                "steps": sums.steps,
                "gram": sums.gram.tolist(),
                "moment": sums.moment.tolist(),
            }
            for name, sums in self.engines.items()
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.new")
        beside.write_text(json.dumps({"unix_s": self.unix_s, "engines": engines}) + "\n")
        beside.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Reading":
        """Read what `save` wrote.

        Raises:
            BadFile: it can't be read, or holds no reading.
        """
        try:
            content = json.loads(path.read_text())
            engines = {name: _sums(one) for name, one in content["engines"].items()}
            return cls(float(content["unix_s"]), engines)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadFile(path, f"it holds no reading: {error}") from error


def recalibrated(start: Calibration, before: Reading, now: Reading) -> Calibration:
    """The calibration of the steps between two readings; ``start`` where they are too few."""
    online = OnlineCalibration(start)
    for reading in (before, now):
        for engine_id, sums in reading.engines.items():
            online.report(engine_id, sums, reading.unix_s)
    return online.calibration


def _sums(content: Mapping[str, Any]) -> StepSums:
    """Raises ValueError where the shapes are not those of sums."""
    gram, moment = np.array(content["gram"], dtype=float), np.array(content["moment"], dtype=float)
    if gram.shape != (len(moment),) * 2 or moment.shape != StepSums.nothing().moment.shape:
        raise ValueError("the sums have other shapes")
    return StepSums(float(content["steps"]), gram, moment)
