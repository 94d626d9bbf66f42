"""The newest snapshot, its variant for canaries, and everyone who waits for a newer one.

Latest wins: a listener that comes late finds the newest, never a queue.
Lives on one event loop.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from controlplane.snapshot import Snapshot


class Broadcast:
    """One snapshot at a time, to any number of listeners.

    Attributes:
        latest: None before the first.
        closed: no more will come; listeners should leave.
    """

    def __init__(self) -> None:
        self.latest: Snapshot | None = None
        self.closed = False
        self._canary: Snapshot | None = None
        self._canaries: frozenset[str] = frozenset()
        self._listeners: set[asyncio.Event] = set()

    def send(
        self,
        snapshot: Snapshot,
        *,
        canary: Snapshot | None = None,
        canaries: frozenset[str] = frozenset(),
    ) -> None:
        """Replace the newest and wake everyone; some engines may get another one."""
        self.latest = snapshot
        self._canary, self._canaries = canary, canaries
        self._wake_all()

    def latest_for(self, engine_id: str) -> Snapshot | None:
        """The newest that an engine is to run."""
        if self._canary is not None and engine_id in self._canaries:
            return self._canary
        return self.latest

    def close(self) -> None:
        """Tell everyone to leave."""
        self.closed = True
        self._wake_all()

    @contextmanager
    def listen(self) -> Iterator[asyncio.Event]:
        """An event that is set at each change; whoever waits clears it."""
        wake = asyncio.Event()
        self._listeners.add(wake)
        try:
            yield wake
        finally:
            self._listeners.discard(wake)

    @property
    def listeners(self) -> int:
        """How many listen now."""
        return len(self._listeners)

    def _wake_all(self) -> None:
        for wake in self._listeners:
            wake.set()
