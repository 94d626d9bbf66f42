"""What a retraining has of those before it, on disk.

`recall` before the fit, `keep` after the version is registered: a run that fails in between
changes nothing.
"""

from dataclasses import dataclass
from pathlib import Path

from models.window import Window
from training.errors import StateUnavailable
from training.online.recalibration import Reading, recalibrated
from training.online.reservoir import Reservoir
from training.simulator.calibration import REFERENCE_ENGINE, Calibration

RESERVOIR_FILE = "reservoir.npz"
CALIBRATION_FILE = "calibration.json"
READING_FILE = "step_sums.json"


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """What is remembered.

    Attributes:
        folder: where.
        reservoir: of the moments of all histories so far.
        calibration: of the engines, up to this retraining.
        reading: what it was made from; None: the engines could not be asked.
    """

    folder: Path
    reservoir: Reservoir
    calibration: Calibration
    reading: Reading | None = None

    @property
    def engines(self) -> int:
        """How many engines the fleet has; one where they could not be asked."""
        return 1 if self.reading is None else max(1, len(self.reading.engines))

    def keep(self, history: Window) -> None:
        """Remember for the next retraining, to which this history is the past.

        Raises:
            StateUnavailable: the folder can't be written.
        """
        self.reservoir.offer_all(history)
        try:
            self.reservoir.save(self.folder / RESERVOIR_FILE)
            self.calibration.save(self.folder / CALIBRATION_FILE)
            if self.reading is not None:
                self.reading.save(self.folder / READING_FILE)
        except OSError as error:
            raise StateUnavailable(f"{self.folder}: {error}") from error


def recall(
    folder: Path, *, reading: Reading | None = None, start: Calibration = REFERENCE_ENGINE
) -> Memory:
    """What is remembered, brought up to date with what the engines say now.

    Args:
        folder: that `Memory.keep` wrote to; empty at first.
        reading: of the engines, now; None: they could not be asked.
        start: of the very first retraining.

    Raises:
        BadFile: a file does not hold what `Memory.keep` wrote.
    """
    reservoir_path, calibration_path, reading_path = (
        folder / name for name in (RESERVOIR_FILE, CALIBRATION_FILE, READING_FILE)
    )
    reservoir = Reservoir.load(reservoir_path) if reservoir_path.exists() else Reservoir()
    calibration = Calibration.load(calibration_path) if calibration_path.exists() else start
    if reading is not None and reading_path.exists():
        calibration = recalibrated(calibration, Reading.load(reading_path), reading)
    return Memory(folder, reservoir, calibration, reading)
