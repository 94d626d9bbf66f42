"""Tells the API servers, by way of a file, what the breaker keeps out at the moment."""

from dataplane.breaker import Breaker
from dataplane.clock import Clock
from dataplane.refusals import NoticeWriter
from dataplane.subscriber.in_force import TableInForce
from dataplane.weights import Tier


class RefusalNotices:
    """For the plugin's background thread: it writes a file."""

    def __init__(
        self, writer: NoticeWriter, *, breaker: Breaker, in_force: TableInForce, clock: Clock
    ) -> None:
        self._writer = writer
        self._breaker = breaker
        self._in_force = in_force
        self._clock = clock

    def write(self, now_s: float) -> None:
        """Say which classes are to be refused now, none of them included.

        Raises:
            OSError: the directory cannot be written to.
        """
        retry_after_s = self._breaker.retry_after_s(now_s)
        policies = self._in_force.at(now_s).policies.values() if retry_after_s > 0 else ()
        refused = frozenset(one.task_class for one in policies if one.tier >= Tier.P2)
        self._writer.publish(refused, retry_after_s, self._clock.wall_s())

    def withdraw(self) -> None:
        """Take the notice away.

        Raises:
            OSError: the directory cannot be written to.
        """
        self._writer.withdraw()
