"""What became of the retrainings, in one SQLite file that several processes write.

A run's row is written when it starts, so that one that was killed shows, too.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from training.errors import StateUnavailable

KEPT_RUNS = 1000
"""Six weeks of hourly ones; older rows are dropped."""

LOST_CAUSE = "it ended without a word: the process was killed"

_BUSY_TIMEOUT_S = 30.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    number INTEGER PRIMARY KEY, started_by TEXT NOT NULL, started_unix_s REAL NOT NULL,
    outcome TEXT NOT NULL, ended_unix_s REAL, version TEXT, cause TEXT
);
CREATE TABLE IF NOT EXISTS timetable (
    one INTEGER PRIMARY KEY CHECK (one = 1), cron TEXT NOT NULL, timezone TEXT NOT NULL
);
"""


class Outcome(StrEnum):
    """How a run stands."""

    RUNNING = "running"
    DONE = "done"
    """It registered a version."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """Another run was in hand."""
    LOST = "lost"
    """It ended without a word: the process was killed."""


class StartedBy(StrEnum):
    """Who asked for a run."""

    HAND = "hand"
    SCHEDULE = "schedule"


@dataclass(frozen=True, slots=True)
class PastRun:
    """One retraining. None where there is nothing to say.

    Attributes:
        version: that it registered.
        cause: why it did not.
    """

    number: int
    started_by: StartedBy
    started_unix_s: float
    outcome: Outcome
    ended_unix_s: float | None
    version: str | None
    cause: str | None


@dataclass(frozen=True, slots=True)
class Timetable:
    """When a schedule runs."""

    cron: str
    timezone: str


class Journal:
    """The file. Every method raises StateUnavailable when it can't be read or written."""

    def __init__(self, path: Path, *, kept_runs: int = KEPT_RUNS) -> None:
        self._path = path
        self._kept_runs = kept_runs
        with self._opened() as connection:
            connection.executescript(_SCHEMA)

    def begin(self, started_by: StartedBy, now_unix_s: float) -> int:
        """Note that a run starts; the caller holds the lock of runs.

        Hence whatever else is noted as running was killed.
        """
        with self._opened() as connection:
            connection.execute(
                "UPDATE runs SET outcome = ?, cause = ? WHERE outcome = ?",
                (Outcome.LOST, LOST_CAUSE, Outcome.RUNNING),
            )
            return self._insert(connection, started_by, now_unix_s, Outcome.RUNNING, None)

    def skip(self, started_by: StartedBy, now_unix_s: float, cause: str) -> None:
        """Note that a run did not start."""
        with self._opened() as connection:
            self._insert(connection, started_by, now_unix_s, Outcome.SKIPPED, cause)

    def finish(
        self,
        number: int,
        outcome: Outcome,
        now_unix_s: float,
        *,
        version: str | None = None,
        cause: str | None = None,
    ) -> None:
        """Note how a run ended."""
        with self._opened() as connection:
            connection.execute(
                "UPDATE runs SET outcome = ?, ended_unix_s = ?, version = ?, cause = ?"
                " WHERE number = ?",
                (outcome, now_unix_s, version, cause, number),
            )

    def last(self, count: int) -> list[PastRun]:
        """The newest runs, newest first."""
        with self._opened() as connection:
            rows = connection.execute(
                "SELECT number, started_by, started_unix_s, outcome, ended_unix_s, version, cause"
                " FROM runs ORDER BY number DESC LIMIT ?",
                (count,),
            ).fetchall()
        return [
            PastRun(row[0], StartedBy(row[1]), row[2], Outcome(row[3]), *row[4:]) for row in rows
        ]

    def set_timetable(self, timetable: Timetable) -> None:
        """Remember when the schedule runs."""
        with self._opened() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO timetable VALUES (1, ?, ?)",
                (timetable.cron, timetable.timezone),
            )

    def timetable(self) -> Timetable | None:
        """Of the schedule that was started last; None: none ever was."""
        with self._opened() as connection:
            row = connection.execute("SELECT cron, timezone FROM timetable").fetchone()
        return None if row is None else Timetable(*row)

    def _insert(
        self,
        connection: sqlite3.Connection,
        started_by: StartedBy,
        now_unix_s: float,
        outcome: Outcome,
        cause: str | None,
    ) -> int:
        ended_unix_s = None if outcome is Outcome.RUNNING else now_unix_s
        row = connection.execute(
            "INSERT INTO runs (started_by, started_unix_s, outcome, ended_unix_s, cause)"
            " VALUES (?, ?, ?, ?, ?) RETURNING number",
            (started_by, now_unix_s, outcome, ended_unix_s, cause),
        ).fetchone()
        connection.execute("DELETE FROM runs WHERE number <= ?", (row[0] - self._kept_runs,))
        return int(row[0])

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """A connection of this call's own, its changes kept at the end or not at all."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT_S)
            try:
                with connection:
                    yield connection
            finally:
                connection.close()
        except (sqlite3.Error, OSError, ValueError) as error:
            raise StateUnavailable(f"{os.fspath(self._path)}: {error}") from error
