"""The classes in which something waits, and which of their heads goes next."""

from collections.abc import Callable, Collection
from heapq import heapify, heappop, heapreplace

from dataplane.faults import FaultBarrier
from dataplane.lanes import ClassLanes, Standing, line_up
from dataplane.ordering import IN_TIME, FairClock
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, Discipline, WeightTable

Gate = Callable[[Ticket, ClassPolicy], bool]
"""Whether this head may be admitted now."""


class Contest:
    """Chooses among the heads of the classes by the discipline of the step.

    All is lazy: a step in which nobody asks who goes next costs nothing, however many
    classes there are. The first question of a step makes a heap of the classes' standings;
    after the leader left, only its class stands anew.

    Args:
        barrier: ends faults of the disciplines and of the gate: the order is then first
            come, first served, and the gate open.

    Attributes:
        in_step: whether a step is on.
        charges: whether its discipline wants to be told who leaves for the engine.
    """

    def __init__(self, barrier: FaultBarrier) -> None:
        self._barrier = barrier
        self._classes: dict[str, ClassLanes] = {}
        self._waiting: dict[str, ClassLanes] = {}
        self._clock = FairClock()
        self._table = WeightTable.initial()
        self._now_s = 0.0
        self._gate: Gate | None = None
        self._closed: set[str] = set()
        self._standings: list[Standing] | None = None
        self._leader_left = False
        self.in_step = self.charges = False

    def begin_step(self, table: WeightTable, now_s: float, gate: Gate | None) -> None:
        """Fix what decides until ``end_step``."""
        if table is not self._table:
            self._switch(table)
        self._now_s, self._gate, self._standings = now_s, gate, None
        self.in_step, self.charges = True, table.discipline is Discipline.WFQ
        self._closed.clear()

    def end_step(self) -> None:
        """From now on, first come, first served."""
        self._gate = self._standings = None
        self.in_step = self.charges = False
        for task_class in self._closed:
            # What a class may not have now it is not owed later.
            self._clock.join(self._classes[task_class].account)
            self._classes[task_class].unsettle()
        self._closed.clear()

    def append(self, ticket: Ticket) -> None:
        """A request arrived."""
        self._lanes(ticket.task_class).append(ticket)

    def prepend(self, ticket: Ticket) -> None:
        """A request came back: preempted, or taken out and skipped."""
        task_class = ticket.task_class
        lanes = self._classes.get(task_class)
        if lanes is not None and ticket.charged_tokens:
            with self._barrier:
                self._clock.refund(lanes.account, ticket, self._weight(task_class))
        self._lanes(task_class).prepend(ticket)

    def leave(self, ticket: Ticket) -> None:
        """The request waits no more."""
        lanes = self._classes[ticket.task_class]
        lanes.remove(ticket.request_id)
        if not lanes:
            del self._waiting[ticket.task_class]
        standings = self._standings
        if standings and standings[0][-1] is ticket:
            self._leader_left = True
        else:
            self._standings = None

    def charge(self, ticket: Ticket, *, in_turn: bool) -> None:
        """The request is about to leave for the engine; ``in_turn``: as the leader."""
        with self._barrier:
            leader = self._standings[0] if self._standings else None
            by_index = leader is not None and leader[-1] is ticket and leader[0] == -IN_TIME
            account = self._classes[ticket.task_class].account
            weight = self._weight(ticket.task_class)
            self._clock.charge(account, ticket, weight, in_turn=in_turn and by_index)

    def ended(self, ticket: Ticket) -> None:
        """A request that was on the engine ended: learn what it turned out to be."""
        lanes = self._classes.get(ticket.task_class)
        if lanes is not None and ticket.dispatched_s is not None:
            lanes.account.learn(ticket.generated_tokens)
            self._clock.settle(lanes.account, ticket, self._weight(ticket.task_class))
            lanes.unsettle()
            self._standings = None

    def leader(self) -> Ticket | None:
        """Who goes next; None: nothing waits, or nothing that the gate lets in."""
        while True:
            head = self._foremost()
            if head is None or self._gate is None or self._admits(self._gate, head):
                return head
            self._close(head)

    def heads(self) -> list[tuple[Ticket, ClassPolicy]]:
        """The first of each class that the gate has not closed, in the order in which they go."""
        standings = sorted(self._drawn_up())
        return [(head, self._waiting[head.task_class].policy) for *_, head in standings]

    def past_slo(self, task_class: str) -> int:
        """How many of a class have waited longer than its TTFT objective."""
        lanes = self._waiting.get(task_class)
        return lanes.past_slo(self._table, self._now_s) if lanes else 0

    def turned_late(self, task_class: str) -> int:
        """How many of a class were ever seen to wait longer than that."""
        lanes = self._classes.get(task_class)
        return 0 if lanes is None else lanes.turned_late

    def oldest_arrival_s(self, task_class: str) -> float | None:
        """When the oldest waiting request of a class arrived; None: none waits."""
        lanes = self._waiting.get(task_class)
        return lanes.oldest_arrival_s() if lanes else None

    def _switch(self, table: WeightTable) -> None:
        wfq = Discipline.WFQ
        if table.discipline is wfq:
            if self._table.discipline is not wfq:
                self._clock.restart(lanes.account for lanes in self._classes.values())
            else:
                self._reweigh(table)
        self._table = table

    def _reweigh(self, table: WeightTable) -> None:
        for task_class, lanes in self._classes.items():
            before, after = self._weight(task_class), table.policy(task_class).weight
            if before != after:
                self._clock.reweigh(lanes.account, before, after)

    def _lanes(self, task_class: str) -> ClassLanes:
        """The queue of a class that a request is about to enter."""
        self._standings = None
        lanes = self._classes.get(task_class)
        if lanes is None:
            lanes = self._classes[task_class] = ClassLanes(task_class)
        if not lanes:
            self._waiting[task_class] = lanes
            self._clock.join(lanes.account)
        return lanes

    def _foremost(self) -> Ticket | None:
        if self.in_step:
            try:
                standings = self._drawn_up()
                return standings[0][-1] if standings else None
            except Exception:
                # The barrier is entered here and not above: this path is the hottest there is.
                with self._barrier:
                    raise
        return self._first()

    def _drawn_up(self) -> list[Standing]:
        """A heap of the standings of all classes that are not closed."""
        standings = self._standings
        if standings is None:
            standings = line_up(self._open(), self._table, self._now_s)
            heapify(standings)
            self._standings = standings
        elif self._leader_left:
            lanes = self._waiting.get(standings[0][-1].task_class)
            if lanes is None:
                heappop(standings)
            else:
                heapreplace(standings, *line_up((lanes,), self._table, self._now_s))
        self._leader_left = False
        return standings

    def _first(self) -> Ticket | None:
        firsts = [lanes.first() for lanes in self._open()]
        return min(firsts, key=lambda first: first.place, default=None)

    def _open(self) -> Collection[ClassLanes]:
        """The classes in which something waits and which the gate has not closed."""
        if not self._closed:
            return self._waiting.values()
        return [lanes for name, lanes in self._waiting.items() if name not in self._closed]

    def _admits(self, gate: Gate, head: Ticket) -> bool:
        with self._barrier:
            return gate(head, self._waiting[head.task_class].policy)
        return True

    def _close(self, head: Ticket) -> None:
        self._closed.add(head.task_class)
        standings = self._standings
        if standings and standings[0][-1] is head:
            heappop(standings)
        else:
            self._standings = None

    def _weight(self, task_class: str) -> float:
        return self._table.policy(task_class).weight
