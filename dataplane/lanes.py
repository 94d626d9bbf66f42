"""The waiting requests of one class, in order, each reachable in O(1).

A class has two lanes: requests that can still make their TTFT objective, and requests that
no longer can. A request changes lane once per change of the objective, so keeping the lanes
costs O(1) amortised, demotion needs no search, and the number of requests past their
objective is a length instead of a count.
"""

from collections import OrderedDict
from collections.abc import Iterable
from operator import attrgetter

from dataplane.ordering import Head, is_late
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, LatePolicy

# An OrderedDict and not a dict: finding the first key of a dict slows down with each
# deletion in front of it, and deleting in front is all a queue does.
Lane = OrderedDict[str, Ticket]

_BY_PLACE = attrgetter("place")


class ClassLanes:
    """One class's queue. Invariant: within a lane, places grow.

    Attributes:
        heads: what may go next: the first request, or under ``demote`` the first of each
            lane; empty when nothing waits.
    """

    __slots__ = ("_in_time", "_late", "_now_s", "_policy", "heads")

    def __init__(self, policy: ClassPolicy, now_s: float) -> None:
        self._policy = policy
        self._now_s = now_s
        self._in_time: Lane = OrderedDict()
        self._late: Lane = OrderedDict()
        self.heads: tuple[Head, ...] = ()

    def __len__(self) -> int:
        return len(self._in_time) + len(self._late)

    @property
    def past_slo(self) -> int:
        """How many have waited longer than their TTFT objective."""
        return len(self._late)

    def oldest_arrival_s(self) -> float | None:
        """Arrival of the request that has waited longest, looking at the fronts only."""
        fronts = [_first(lane).arrived_s for lane in (self._in_time, self._late) if lane]
        return min(fronts, default=None)

    def append(self, ticket: Ticket) -> None:
        """Add at the end. Its place is larger than all others'."""
        self._in_time[ticket.request_id] = ticket
        if len(self._in_time) == 1:
            self._find_heads()

    def prepend(self, ticket: Ticket) -> None:
        """Put at the front of the lane it belongs to. Its place is the smallest there."""
        late = is_late(ticket, self._policy, self._now_s)
        lane = self._late if late else self._in_time
        lane[ticket.request_id] = ticket
        lane.move_to_end(ticket.request_id, last=False)
        self._find_heads()

    def remove(self, request_id: str) -> None:
        """Take one out, wherever it stands."""
        if self._in_time.pop(request_id, None) is None:
            del self._late[request_id]
        self._sort_out_late()
        self._find_heads()

    def settle(self, policy: ClassPolicy, now_s: float) -> None:
        """Bring the lanes up to date with the class's policy and the time."""
        if policy.slo.ttft_s != self._policy.slo.ttft_s:
            everyone = (*self._late.values(), *self._in_time.values())
            self._in_time, self._late = _by_place(everyone), OrderedDict()
        self._policy, self._now_s = policy, now_s
        self._sort_out_late()
        self._find_heads()

    def _sort_out_late(self) -> None:
        in_time = self._in_time
        while in_time:
            ticket = _first(in_time)
            if not is_late(ticket, self._policy, self._now_s):
                return
            del in_time[ticket.request_id]
            self._append_late(ticket)

    def _append_late(self, ticket: Ticket) -> None:
        late = self._late
        late[ticket.request_id] = ticket
        # Places follow arrival but for milliseconds, as requests travel at different speeds.
        if len(late) > 1 and ticket.place < _last_but_one(late).place:
            self._late = _by_place(late.values())

    def _find_heads(self) -> None:
        fronts = [_first(lane) for lane in (self._in_time, self._late) if lane]
        if len(fronts) > 1 and self._policy.late is not LatePolicy.DEMOTE:
            fronts = [min(fronts, key=_BY_PLACE)]
        self.heads = tuple((ticket, self._policy) for ticket in fronts)


def _first(lane: Lane) -> Ticket:
    return next(iter(lane.values()))


def _last_but_one(lane: Lane) -> Ticket:
    newest_first = iter(reversed(lane.values()))
    next(newest_first)
    return next(newest_first)


def _by_place(tickets: Iterable[Ticket]) -> Lane:
    return OrderedDict((ticket.request_id, ticket) for ticket in sorted(tickets, key=_BY_PLACE))
