"""What can go wrong in training.

TrainingError
├── NotEnoughHistory   fewer measured steps than there must be
├── FitDiverged        the loss was no number in any epoch
├── BadFile            a file of the simulator's does not hold what it should
├── NotEnoughSteps     fewer measured engine steps than a calibration needs
├── OtherTraining      a folder holds a training that was begun with other options
├── RequestTooLarge    a request that no engine of the fleet can hold
├── BadSchedule        no cron expression, no time zone, or one that never comes
├── AlreadyRunning     another process retrains, or keeps the schedule, in the same folder
└── StateUnavailable   the folder of the retrainings' state can't be read or written
"""

from pathlib import Path


class TrainingError(Exception):
    """Root of this package's errors."""


class NotEnoughHistory(TrainingError):
    """The history holds too few examples.

    Attributes:
        examples: how many there are.
        needed: how many there must be.
    """

    def __init__(self, *, examples: int, needed: int, history_s: float, needed_s: float) -> None:
        """Say both in examples and in time."""
        self.examples = examples
        self.needed = needed
        super().__init__(
            f"{history_s:.0f} s of history give {examples} examples with traffic; "
            f"{needed} are needed, which takes at least {needed_s:.0f} s"
        )


class FitDiverged(TrainingError):
    """The loss on the hold-out was no number in any epoch."""


class BadFile(TrainingError):
    """A file of the simulator's does not hold what it should.

    Attributes:
        path: of the file.
        line: counted from 1; None: it is the file as a whole.
    """

    def __init__(self, path: Path, why: str, *, line: int | None = None) -> None:
        """Say where, and what is wrong there."""
        self.path = path
        self.line = line
        super().__init__(f"{path}{'' if line is None else f', line {line}'}: {why}")


class NotEnoughSteps(TrainingError):
    """Fewer measured engine steps than a calibration needs."""


class OtherTraining(TrainingError):
    """A folder holds a training that was begun with other options, or another schema.

    Attributes:
        folder: that holds it.
    """

    def __init__(self, folder: Path) -> None:
        """Name the folder."""
        self.folder = folder
        super().__init__(f"{folder} holds a training that was begun with other options")


class RequestTooLarge(TrainingError, ValueError):
    """A request that no engine of the fleet can hold."""


class BadSchedule(TrainingError, ValueError):
    """No cron expression, no time zone, or one whose time never comes."""


class AlreadyRunning(TrainingError):
    """Another process holds what only one may."""


class StateUnavailable(TrainingError):
    """The folder of the retrainings' state can't be read or written."""
