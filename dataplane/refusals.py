"""Which classes are refused at the door: a one-way channel from engines to API servers.

The breaker lives in the engine-core process, HTTP in the API-server processes; each is a
process of its own. An engine leaves a notice, a small file, in a directory that both know,
and renews it; a notice that is not renewed lapses, so a dead engine refuses nobody.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError

LOOK_INTERVAL_S = 0.05
"""How often a process looks at the directory at most."""

_PREFIX = "trimtab-refusals-"
_LEAST_LIFETIME_S = 2.0
_RENEWALS_PER_LIFETIME = 4


@dataclass(frozen=True, slots=True)
class Notice:
    """What one engine says.

    Attributes:
        refused: task classes; none, if the engine only says that it is alive.
        retry_after_s: when it makes sense to ask again.
        lifetime_s: the notice holds for so long after ``written_at_unix_s``.
    """

    engine_id: str
    refused: frozenset[str]
    retry_after_s: Annotated[FiniteFloat, Field(ge=0)]
    written_at_unix_s: FiniteFloat
    lifetime_s: Annotated[FiniteFloat, Field(gt=0)]

    def holds(self, now_unix_s: float) -> bool:
        """Whether it has not lapsed. A notice from the future is one from before a clock step."""
        return abs(now_unix_s - self.written_at_unix_s) <= self.lifetime_s


_NOTICE = TypeAdapter(Notice)


class NoticeWriter:
    """Leaves and renews one engine's notice. For a background thread: it writes a file.

    Args:
        directory: that the API servers of this engine look at, and those of no other.
        engine_id: names the engine to people who read the file.
        interval_s: between two calls of ``publish``.
    """

    def __init__(self, directory: Path, *, engine_id: str, interval_s: float) -> None:
        self._engine_id = engine_id
        self._lifetime_s = max(_LEAST_LIFETIME_S, _RENEWALS_PER_LIFETIME * interval_s)
        # Engines of one server may share an id, and engines in containers a process id.
        digest = hashlib.sha256(engine_id.encode()).hexdigest()[:12]
        self._path = directory / f"{_PREFIX}{digest}-{os.getpid()}.json"
        self._draft = self._path.with_suffix(".tmp")

    def publish(self, refused: frozenset[str], retry_after_s: float, now_unix_s: float) -> None:
        """Say what is refused from now on, or say again that it still is.

        Raises:
            OSError: the directory cannot be written to.
        """
        notice = Notice(self._engine_id, refused, retry_after_s, now_unix_s, self._lifetime_s)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._draft.write_bytes(_NOTICE.dump_json(notice))
        self._draft.replace(self._path)  # at once: a reader sees the old one or the new one

    def withdraw(self) -> None:
        """Take the notice away, at the engine's end.

        Raises:
            OSError: the directory cannot be written to.
        """
        self._path.unlink(missing_ok=True)


class NoticeBoard:
    """All engines' notices, as an API server sees them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._due_s = float("-inf")
        self._refused: Mapping[str, float] = {}

    def refused(self, now_s: float, now_unix_s: float) -> Mapping[str, float]:
        """The refused classes, each with the seconds after which to ask again.

        A request may go to any engine behind the server, so a class is refused when every
        engine refuses it, until the first of them may take it again. Never raises.

        Args:
            now_s: monotonic.
            now_unix_s: wall clock of this host, which is that of its engines.
        """
        if now_s >= self._due_s:
            self._due_s = now_s + LOOK_INTERVAL_S
            self._refused = _refused_by_all(self._notices(now_unix_s))
        return self._refused

    def _notices(self, now_unix_s: float) -> list[Notice]:
        try:
            paths = list(self._directory.glob(f"{_PREFIX}*.json"))
        except OSError:
            return []  # not a directory, or none that may be read: nobody says anything
        notices = (_read(path) for path in paths)
        return [notice for notice in notices if notice and notice.holds(now_unix_s)]


def _refused_by_all(notices: list[Notice]) -> Mapping[str, float]:
    if not notices:
        return {}
    refused = frozenset.intersection(*(notice.refused for notice in notices))
    return dict.fromkeys(refused, min(notice.retry_after_s for notice in notices))


def _read(path: Path) -> Notice | None:
    try:
        return _NOTICE.validate_json(path.read_bytes())
    except (OSError, ValidationError):  # just withdrawn, or not ours
        return None
