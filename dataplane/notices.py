"""Tells the API servers, by way of a file, what the breaker keeps out at the moment."""

from collections.abc import Callable, Iterable

from dataplane.breaker import Breaker, BreakerState
from dataplane.clock import Clock
from dataplane.refusals import NoticeWriter
from dataplane.subscriber.in_force import TableInForce
from dataplane.weights import Tier


class RefusalNotices:
    """For the plugin's background thread: it writes a file.

    Args:
        seen: the classes that requests brought along so far.
    """

    def __init__(
        self,
        writer: NoticeWriter,
        *,
        breaker: Breaker,
        in_force: TableInForce,
        seen: Callable[[], Iterable[str]],
        clock: Clock,
    ) -> None:
        self._writer = writer
        self._breaker = breaker
        self._in_force = in_force
        self._seen = seen
        self._clock = clock

    def write(self, now_s: float) -> None:
        """Say which classes are to be refused now; that there are none says that it is alive.

        Only while the breaker is open: half open, it wants to see some of them.

        Raises:
            OSError: the directory cannot be written to.
        """
        refused: frozenset[str] = frozenset()
        if self._breaker.state(now_s) is BreakerState.OPEN:
            table = self._in_force.at(now_s)
            names = {*table.policies, *self._seen()}
            refused = frozenset(name for name in names if table.policy(name).tier >= Tier.P2)
        self._writer.publish(refused, self._breaker.retry_after_s(now_s), self._clock.wall_s())

    def withdraw(self) -> None:
        """Take the notice away.

        Raises:
            OSError: the directory cannot be written to.
        """
        self._writer.withdraw()
