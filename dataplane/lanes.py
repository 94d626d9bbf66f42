"""The waiting requests of one class, in order, each reachable in O(1).

A class has three lanes: requests that have been on the engine and were preempted, requests
that can still make their TTFT objective, and requests that no longer can. A request becomes
late once per change of the objective, so keeping the lanes costs O(1) amortised, demotion
needs no search, and the number of requests past their objective is a length, not a count.
"""

from collections import OrderedDict
from collections.abc import Iterable
from operator import attrgetter

from dataplane.ordering import Ordering, is_late
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, LatePolicy

# An OrderedDict and not a dict: finding the first key of a dict slows down with each
# deletion in front of it, and deleting in front is all a queue does.
Lane = OrderedDict[str, Ticket]

Contender = tuple[int, float, int, Ticket]
"""A standing and whose it is."""

_BY_PLACE = attrgetter("place")


class ClassLanes:
    """One class's queue. Invariant: within a lane, places grow.

    Attributes:
        heads: what may go next: the first request, or under ``demote`` the first of those
            that are not late and the first of those that are; empty when nothing waits.
        contender: the class's best head, if ``contend`` was called since the heads changed.
    """

    __slots__ = ("_in_time", "_late", "_now_s", "_policy", "_preempted", "contender", "heads")

    def __init__(self, policy: ClassPolicy, now_s: float) -> None:
        self._policy = policy
        self._now_s = now_s
        self._preempted: Lane = OrderedDict()
        self._in_time: Lane = OrderedDict()
        self._late: Lane = OrderedDict()
        self.heads: tuple[Ticket, ...] = ()
        self.contender: Contender | None = None

    @property
    def past_slo(self) -> int:
        """How many have waited longer than their TTFT objective."""
        return len(self._late)

    def oldest_arrival_s(self) -> float | None:
        """Arrival of the request that has waited longest, looking at the fronts only."""
        lanes = (self._preempted, self._in_time, self._late)
        return min((_first(lane).arrived_s for lane in lanes if lane), default=None)

    def append(self, ticket: Ticket) -> None:
        """Add at the end. Its place is larger than all others'."""
        self._in_time[ticket.request_id] = ticket
        if len(self._in_time) == 1:
            self._find_heads()

    def prepend(self, ticket: Ticket) -> None:
        """Put at the front of the lane it belongs to. Its place is the smallest there."""
        if ticket.dispatched_s is not None:
            lane = self._preempted
        elif is_late(ticket, self._policy, self._now_s):
            lane = self._late
        else:
            lane = self._in_time
        lane[ticket.request_id] = ticket
        lane.move_to_end(ticket.request_id, last=False)
        self._find_heads()

    def remove(self, request_id: str) -> None:
        """Take one out, wherever it stands."""
        for lane in (self._in_time, self._late, self._preempted):
            if lane.pop(request_id, None) is not None:
                break
        self._find_heads()

    def settle(self, policy: ClassPolicy, now_s: float) -> None:
        """Bring the lanes up to date with the class's policy and the time."""
        if policy.slo.ttft_s != self._policy.slo.ttft_s:
            arrivals = (*self._late.values(), *self._in_time.values())
            self._in_time, self._late = _by_place(arrivals), OrderedDict()
        self._policy, self._now_s = policy, now_s
        while self._in_time and is_late(_first(self._in_time), policy, now_s):
            _, ticket = self._in_time.popitem(last=False)
            self._append_late(ticket)
        self._find_heads()

    def contend(self, ordering: Ordering) -> Contender:
        """The best head with its standing, as of the last ``settle``; heads must exist."""
        heads = self.heads
        best = (*ordering(heads[0], self._policy, self._now_s), heads[0])
        for head in heads[1:]:
            best = max(best, (*ordering(head, self._policy, self._now_s), head))
        self.contender = best
        return best

    def _append_late(self, ticket: Ticket) -> None:
        late = self._late
        in_order = not late or _last(late).place < ticket.place
        late[ticket.request_id] = ticket
        # Places follow arrival but for milliseconds, as requests travel at different speeds.
        if not in_order:
            self._late = _by_place(late.values())

    def _find_heads(self) -> None:
        self.contender = None
        not_late = self._preempted or self._in_time
        if not self._late:
            self.heads = (_first(not_late),) if not_late else ()
        elif not not_late:
            self.heads = (_first(self._late),)
        else:
            both = _first(not_late), _first(self._late)
            demotes = self._policy.late is LatePolicy.DEMOTE
            self.heads = both if demotes else (min(both, key=_BY_PLACE),)


def _first(lane: Lane) -> Ticket:
    return next(iter(lane.values()))


def _last(lane: Lane) -> Ticket:
    return next(reversed(lane.values()))


def _by_place(tickets: Iterable[Ticket]) -> Lane:
    return OrderedDict((ticket.request_id, ticket) for ticket in sorted(tickets, key=_BY_PLACE))
