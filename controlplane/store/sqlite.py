"""Snapshots, decisions and events in one SQLite file.

One process writes, which claims the file; people may read it at the same time (WAL).
Records are JSON, so that `sqlite3 trimtab.db 'select snapshot from published'` is legible.
Blocking and thread-safe.
"""

import fcntl
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

from pydantic import TypeAdapter

from controlplane.canary import TrialRecord
from controlplane.errors import StoreError
from controlplane.restart import StoredHead
from controlplane.snapshot import Decision, Discipline, Snapshot

_SCHEMA = """
CREATE TABLE IF NOT EXISTS published (
    version INTEGER PRIMARY KEY, snapshot TEXT NOT NULL, decision TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY, unix_s REAL NOT NULL, kind TEXT NOT NULL,
    actor TEXT NOT NULL, detail TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_BUSY_TIMEOUT_S = 1.0
"""Longest wait for a lock that somebody else holds; a fraction of a tick."""

_LARGEST_INTEGER = 2**63 - 1
"""That SQLite holds; the protocol's versions reach further."""

_SNAPSHOT = TypeAdapter(Snapshot)
_DECISION = TypeAdapter(Decision)
_TRIAL = TypeAdapter(TrialRecord)


class EventKind(StrEnum):
    """What is worth remembering besides the snapshots."""

    STARTED = "started"
    MODE_CHANGED = "mode_changed"
    DISCIPLINE_CHANGED = "discipline_changed"
    MODEL_CHANGED = "model_changed"
    RETRAIN_ASKED = "retrain_asked"
    TRIAL_STARTED = "trial_started"
    TRIAL_RESUMED = "trial_resumed"
    TRIAL_ENDED = "trial_ended"


@dataclass(frozen=True, slots=True)
class Event:
    """Who did what, when and why."""

    unix_s: float
    kind: EventKind
    actor: str
    detail: str


class SqliteStore:
    """The store. Every method may raise StoreError.

    Args:
        path: the file; it and its folder are created when missing.
        retention: how many snapshots, and how many events, are kept.
    """

    def __init__(self, path: Path, retention: int) -> None:
        self.path = path
        self._retention = retention
        self._lock = threading.RLock()
        self._claimed: TextIO | None = None
        with _mapped(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False, isolation_level=None
            )
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = NORMAL")
                self._connection.executescript(_SCHEMA)
                self._kept = int(self._one("SELECT count(*) FROM published")[0])
            except sqlite3.Error:
                self._connection.close()
                raise

    def claim(self) -> None:
        """Be the one that writes, until `close` or the end of the process.

        Raises:
            StoreError: another control plane is.
        """
        with _mapped(self.path):
            claimed = self.path.with_name(f"{self.path.name}.lock").open("w")
        try:
            fcntl.flock(claimed, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._claimed = claimed
        except OSError as error:
            claimed.close()
            raise StoreError(f"{self.path}: another control plane writes to it") from error

    def head(self) -> StoredHead | None:
        """The newest snapshot; None in a new store."""
        row = self._one("SELECT version, snapshot FROM published ORDER BY version DESC LIMIT 1")
        if row is None:
            return None
        with _mapped(self.path):
            snapshot = _SNAPSHOT.validate_json(row[1])
        return StoredHead(snapshot, clean_stop=self._setting("clean_stop") == str(row[0]))

    def decision(self, version: int) -> Decision | None:
        """Why ``version`` is what it is; None when it is not there (any more)."""
        if version > _LARGEST_INTEGER:
            return None
        row = self._one("SELECT decision FROM published WHERE version = ?", version)
        with _mapped(self.path):
            return _DECISION.validate_json(row[0]) if row else None

    def events(self) -> list[Event]:
        """All that is kept, oldest first."""
        with self._lock, _mapped(self.path):
            rows = self._connection.execute(
                "SELECT unix_s, kind, actor, detail FROM events ORDER BY id"
            ).fetchall()
            return [Event(row[0], EventKind(row[1]), row[2], row[3]) for row in rows]

    def discipline(self) -> Discipline | None:
        """What an operator set; None: nobody did."""
        value = self._setting("discipline")
        with _mapped(self.path):
            return None if value is None else Discipline(value)

    def trial(self) -> TrialRecord | None:
        """The trial that was kept last; None: there was none yet."""
        value = self._setting("trial")
        with _mapped(self.path):
            return None if value is None else _TRIAL.validate_json(value)

    def set_trial(self, trial: TrialRecord) -> None:
        """Keep how a trial stands, instead of the one before."""
        self._in_transaction(lambda: self._set("trial", _TRIAL.dump_json(trial).decode()))

    def save(self, snapshot: Snapshot, decision: Decision) -> None:
        """Keep a snapshot and its reason, dropping what is past retention.

        Versions are counted, not subtracted: they skip after a process that was killed.
        """
        kept = self._kept + 1
        row = (
            snapshot.version,
            _SNAPSHOT.dump_json(snapshot).decode(),
            _DECISION.dump_json(decision).decode(),
        )
        self._in_transaction(
            lambda: self._execute("INSERT INTO published VALUES (?, ?, ?)", *row),
            lambda: self._execute(
                "DELETE FROM published WHERE version IN"
                " (SELECT version FROM published ORDER BY version LIMIT ?)",
                max(0, kept - self._retention),
            ),
        )
        self._kept = min(kept, self._retention)

    def record(self, event: Event) -> None:
        """Keep an event, dropping what is past retention."""
        self._in_transaction(lambda: self._insert(event))

    def set_discipline(self, discipline: Discipline, event: Event) -> None:
        """Keep an operator's choice together with who made it and why."""
        self._in_transaction(
            lambda: self._set("discipline", discipline.value), lambda: self._insert(event)
        )

    def mark_clean_stop(self, version: int) -> None:
        """``version`` is the last that was handed out, and it is in the store."""
        self._in_transaction(lambda: self._set("clean_stop", str(version)))

    def close(self) -> None:
        """Close the file."""
        with self._lock, _mapped(self.path):
            self._connection.close()
            if self._claimed is not None:
                self._claimed.close()

    def _insert(self, event: Event) -> None:
        self._execute(
            "INSERT INTO events (unix_s, kind, actor, detail) VALUES (?, ?, ?, ?)",
            *(event.unix_s, event.kind.value, event.actor, event.detail),
        )
        self._execute(
            "DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?", self._retention
        )

    def _setting(self, name: str) -> str | None:
        row = self._one("SELECT value FROM settings WHERE name = ?", name)
        return None if row is None else str(row[0])

    def _set(self, name: str, value: str) -> None:
        self._execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", name, value)

    def _execute(self, sql: str, *parameters: object) -> None:
        self._connection.execute(sql, parameters)

    def _one(self, sql: str, *parameters: object) -> Any:
        with self._lock, _mapped(self.path):
            return self._connection.execute(sql, parameters).fetchone()

    def _in_transaction(self, *statements: Callable[[], None]) -> None:
        with self._lock, _mapped(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                for statement in statements:
                    statement()
                self._connection.execute("COMMIT")
            finally:
                # After an error; some errors have already rolled back.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")


@contextmanager
def _mapped(path: Path) -> Iterator[None]:
    """SQLite's, the file system's and the parser's errors as StoreError."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"{path}: {error}") from error
    except ValueError as error:  # pydantic's and those of the enums
        raise StoreError(f"{path}: holds a record that is none of this version's") from error
