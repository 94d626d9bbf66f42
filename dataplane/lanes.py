"""The waiting requests of one class, in order, each reachable in O(1).

A class has three lanes: requests that have been on the engine and were preempted, requests
that can still make their TTFT objective, and requests that no longer can. A request becomes
late once per change of the objective, so keeping the lanes costs O(1) amortised, demotion
needs no search, and the number of requests past their objective is a length, not a count.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable
from operator import attrgetter

from dataplane.ordering import IN_TIME, LATE, ORDERINGS, OVERDUE, Account, is_late, overdue
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, Discipline, LatePolicy, WeightTable

# An OrderedDict and not a dict: finding the first key of a dict slows down with each
# deletion in front of it, and deleting in front is all a queue does.
Lane = OrderedDict[str, Ticket]

Standing = tuple[int, float, int, Ticket]
"""Minus the rank, minus the index, the place, which is unique, and whose it is.

The smallest goes next, as in a heap.
"""

_BY_PLACE = attrgetter("place")
_ALWAYS = -math.inf
_NEVER = math.inf


class ClassLanes:
    """One class's queue. Invariant: within a lane, places grow.

    What the class's head claims is kept until it may change: until a request enters or
    leaves, another table comes into force, or a certain time passes.

    Attributes:
        account: what the plugin learned of the class; it outlives the requests.
        due_s: until when ``leader`` holds under ``table``.
        leader: minus its rank, its claim's base and slope, its arrival, its place, itself.
        policy: the class's, of ``table``.
        table: as of the last settling.
        turned_late: how many were ever seen to wait past their TTFT objective.
    """

    __slots__ = (
        "_in_time",
        "_late",
        "_late_rank",
        "_max_wait_s",
        "_now_s",
        "_ordering",
        "_patience_s",
        "_preempted",
        "account",
        "due_s",
        "leader",
        "policy",
        "table",
        "task_class",
        "turned_late",
    )

    def __init__(self, task_class: str) -> None:
        self.task_class = task_class
        self.account = Account()
        self.turned_late = 0
        self._preempted: Lane = OrderedDict()
        self._in_time: Lane = OrderedDict()
        self._late: Lane = OrderedDict()
        self._now_s = self.due_s = _ALWAYS
        self.table = WeightTable.initial()
        self.policy: ClassPolicy = self.table.policy(task_class)
        self._adopt(self.table)

    def __bool__(self) -> bool:
        return bool(self._in_time or self._late or self._preempted)

    def append(self, ticket: Ticket) -> None:
        """Add at the end. Its place is larger than all others'."""
        self._in_time[ticket.request_id] = ticket
        if len(self._in_time) == 1:
            self.due_s = _ALWAYS

    def prepend(self, ticket: Ticket) -> None:
        """Put into the lane it belongs to, near the front: in O(those with smaller places)."""
        if ticket.dispatched_s is not None:
            lane = self._preempted
        elif is_late(ticket, self.policy, self._now_s):
            lane = self._late
        else:
            lane = self._in_time
        _insert_near_front(lane, ticket)
        self.due_s = _ALWAYS

    def remove(self, request_id: str) -> None:
        """Take one out, wherever it stands."""
        for lane in (self._in_time, self._late, self._preempted):
            if lane.pop(request_id, None) is not None:
                break
        self.due_s = _ALWAYS

    def unsettle(self) -> None:
        """The account changed: what the head claims has to be seen anew."""
        self.due_s = _ALWAYS

    def first(self) -> Ticket:
        """The smallest place; something must wait."""
        return min(self._fronts(), key=_BY_PLACE)

    def oldest_arrival_s(self) -> float | None:
        """Arrival of the request that has waited longest, looking at the fronts only."""
        return min((front.arrived_s for front in self._fronts()), default=None)

    def past_slo(self, table: WeightTable, now_s: float) -> int:
        """How many have waited longer than their TTFT objective."""
        if table is not self.table:
            self._adopt(table)
        self._turn_late(now_s)
        return len(self._late)

    def settle(self, table: WeightTable, now_s: float) -> None:
        """Find the head, what it claims, and until when; something must wait."""
        if table is not self.table:
            self._adopt(table)
        head, minus_rank = self._turn_late(now_s), -IN_TIME
        due_s = _NEVER if head is None else head.arrived_s + self._patience_s
        if head is None or now_s > due_s or self._late or self._preempted:
            minus_rank, head = self._lead(head, now_s)
            due_s = self._next_change_s(now_s)
        ordering = overdue if minus_rank == -OVERDUE else self._ordering
        base, slope = ordering(head, self.policy, self.account)
        self.leader = minus_rank, base, slope, head.arrived_s, head.place, head
        self.due_s = due_s

    def reweigh(self, table: WeightTable) -> bool:
        """Take on a table that changes no more than weights; False: this one changes more.

        Which request leads, and until when, stays as it is: only what it claims does not.
        Something must wait, and be settled.
        """
        policy = table.policy(self.task_class)
        if policy.terms != self.policy.terms or table.discipline is not self.table.discipline:
            return False
        self.table, self.policy = table, policy
        minus_rank, _, _, since_s, place, head = self.leader
        if minus_rank != -OVERDUE:
            self.leader = (
                minus_rank,
                *self._ordering(head, policy, self.account),
                since_s,
                place,
                head,
            )
        return True

    def _lead(self, in_time: Ticket | None, now_s: float) -> tuple[int, Ticket]:
        """Minus the rank, and the head: by rank, then by place."""
        on_time = _first(self._preempted) if self._preempted else in_time
        heads = []
        if on_time is not None:
            heads.append((self._minus_rank(on_time, IN_TIME, now_s), on_time.place, on_time))
        if self._late:
            late = _first(self._late)
            heads.append((self._minus_rank(late, self._late_rank, now_s), late.place, late))
        minus_rank, _, head = min(heads)
        return minus_rank, head

    def _minus_rank(self, head: Ticket, usual_rank: int, now_s: float) -> int:
        return -OVERDUE if now_s > head.arrived_s + self._max_wait_s else -usual_rank

    def _next_change_s(self, now_s: float) -> float:
        """When time alone will turn a request late or a head overdue."""
        due_s = _NEVER
        if self._in_time:
            due_s = _first(self._in_time).arrived_s + self.policy.slo.ttft_s
        if self._max_wait_s < _NEVER:
            for front in self._fronts():
                overdue_s = front.arrived_s + self._max_wait_s
                if now_s <= overdue_s < due_s:
                    due_s = overdue_s
        return due_s

    def _adopt(self, table: WeightTable) -> None:
        policy = table.policy(self.task_class)
        # Stock's order knows neither objectives nor bounds.
        stock = table.discipline is Discipline.FCFS
        demotes = policy.late is LatePolicy.DEMOTE and not stock
        self._late_rank = LATE if demotes else IN_TIME
        self._max_wait_s = _NEVER if stock or policy.max_wait_s is None else policy.max_wait_s
        self._patience_s = min(self._max_wait_s, policy.slo.ttft_s)
        self._ordering = ORDERINGS[table.discipline]
        if self._late and policy.slo.ttft_s != self.policy.slo.ttft_s:
            arrivals = sorted((*self._late.values(), *self._in_time.values()), key=_BY_PLACE)
            self._in_time = OrderedDict((each.request_id, each) for each in arrivals)
            self._late = OrderedDict()
        self.table, self.policy, self.due_s = table, policy, _ALWAYS

    def _turn_late(self, now_s: float) -> Ticket | None:
        """Move those that turned late to their lane; the first that did not."""
        self._now_s = now_s
        in_time, ttft_s = self._in_time, self.policy.slo.ttft_s
        while in_time:
            first = in_time[next(iter(in_time))]
            if now_s <= first.arrived_s + ttft_s or not is_late(first, self.policy, now_s):
                return first
            del in_time[first.request_id]
            self.turned_late += not first.overdue  # another objective may have let it back in
            first.overdue = True
            _insert_near_end(self._late, first)
        return None

    def _fronts(self) -> list[Ticket]:
        return [_first(lane) for lane in (self._preempted, self._in_time, self._late) if lane]


def line_up(classes: Iterable[ClassLanes], table: WeightTable, now_s: float) -> list[Standing]:
    """How each class stands; written out, as each step's first dispatch waits for it."""
    standings: list[Standing] = []
    for lanes in classes:
        if now_s > lanes.due_s or (lanes.table is not table and not lanes.reweigh(table)):
            lanes.settle(table, now_s)
        minus_rank, base, slope, since_s, place, head = lanes.leader
        standings.append((minus_rank, -base - slope * (now_s - since_s), place, head))
    return standings


def _first(lane: Lane) -> Ticket:
    return lane[next(iter(lane))]


def _insert_near_front(lane: Lane, ticket: Ticket) -> None:
    """Insert by place. What comes back to a queue was at its front, or close behind it."""
    before = []
    while lane and (first := _first(lane)).place < ticket.place:
        del lane[first.request_id]
        before.append(first)
    for each in (ticket, *reversed(before)):
        lane[each.request_id] = each
        lane.move_to_end(each.request_id, last=False)


def _insert_near_end(lane: Lane, ticket: Ticket) -> None:
    """Insert by place. Places follow arrival but for milliseconds, by which stamps differ."""
    after = []
    while lane and next(reversed(lane.values())).place > ticket.place:
        after.append(lane.popitem()[1])
    for each in (ticket, *reversed(after)):
        lane[each.request_id] = each
