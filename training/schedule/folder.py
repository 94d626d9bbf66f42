"""The folder of the retrainings' state, and the two things that one process at a time may do."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from controlplane.clock import Clock
from training.errors import AlreadyRunning, StateUnavailable
from training.schedule.journal import Journal, Outcome, StartedBy

_PATIENCE_S = 1.0
"""Somebody who only looks whether a lock is held holds it for an instant."""


@dataclass(slots=True)
class RunInHand:
    """A run that was noted; whoever does it says which version came out."""

    number: int
    version: str | None = None


@dataclass(frozen=True, slots=True)
class StateFolder:
    """Where the retrainings of one fleet keep what they remember.

    The locks are the operating system's: they end with the process that holds them, however
    that ends. On a network file system they are as good as that is.
    """

    path: Path

    @property
    def jobs_url(self) -> str:
        """Of APScheduler's job store."""
        return f"sqlite:///{(self.path / 'schedule.db').absolute()}"

    @property
    def journal(self) -> Journal:
        """What became of the runs."""
        return Journal(self.path / "runs.db")

    @property
    def schedule_runs(self) -> bool:
        """Whether a process keeps the schedule at this moment."""
        return self._held("schedule.lock")

    @property
    def retrains(self) -> bool:
        """Whether a run is in hand at this moment."""
        return self._held("retrain.lock")

    @contextmanager
    def keep_schedule(self) -> Iterator[None]:
        """Be the one process that keeps the schedule.

        Raises:
            AlreadyRunning: another does.
            StateUnavailable: the folder can't be written.
        """
        with self._lock("schedule.lock", f"another process keeps the schedule in {self.path}"):
            yield

    @contextmanager
    def retrain(self, started_by: StartedBy, clock: Clock) -> Iterator[RunInHand]:
        """Be the one process that retrains, and note how that ends.

        Raises:
            AlreadyRunning: another does; noted as skipped.
            StateUnavailable: the folder can't be written.
        """
        journal = self.journal
        busy = f"another retraining is in hand in {self.path}"
        try:
            with self._lock("retrain.lock", busy):
                yield from _noted(journal, started_by, clock)
        except AlreadyRunning as error:
            journal.skip(started_by, clock.unix_s(), str(error))
            raise

    @contextmanager
    def _lock(self, name: str, busy: str, *, patience_s: float = _PATIENCE_S) -> Iterator[None]:
        lock = FileLock(self.path / name, timeout=patience_s)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout as error:
            raise AlreadyRunning(busy) from error
        except OSError as error:
            raise StateUnavailable(f"{self.path}: {error}") from error
        try:
            yield
        finally:
            lock.release()

    def _held(self, name: str) -> bool:
        if not (self.path / name).exists():
            return False
        try:
            with self._lock(name, name, patience_s=0):
                return False
        except AlreadyRunning:
            return True


def _noted(journal: Journal, started_by: StartedBy, clock: Clock) -> Iterator[RunInHand]:
    run = RunInHand(journal.begin(started_by, clock.unix_s()))
    try:
        yield run
    except BaseException as error:  # noted, and on it goes: an exit or Ctrl-C no less
        cause = str(error) or type(error).__name__
        journal.finish(run.number, Outcome.FAILED, clock.unix_s(), cause=cause)
        raise
    journal.finish(run.number, Outcome.DONE, clock.unix_s(), version=run.version)
