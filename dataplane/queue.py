"""vLLM's waiting queue, kept per class and ordered by a discipline."""

from collections.abc import Callable, Iterable, Iterator

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from dataplane.contest import Contest, Gate
from dataplane.faults import FaultBarrier
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, WeightTable


class ClassRequestQueue(RequestQueue):  # type: ignore[misc] # vLLM ships no type information
    """One FIFO per class; the discipline of the step chooses among their heads.

    Every request has a place: arrivals count up, preempted ones count down, and a request
    that the scheduler took out and skipped comes back to the place it had. Sorted by place
    the queue is exactly vLLM's FCFS queue, whatever disciplines were in force meanwhile.

    Between ``begin_step`` and ``end_step`` table and time stand still, and a choice stands
    until a request enters or leaves: ``bool()``, ``peek_request`` and ``pop_request`` speak
    of the same request even if a new snapshot lands in between. Outside of a step, and when
    a discipline fails, the order is first come, first served.

    Args:
        ticket_of: gives the plugin's record of a request; must not raise.
        barrier: ends faults of the disciplines and of the gate.
    """

    def __init__(self, ticket_of: Callable[[Request], Ticket], barrier: FaultBarrier) -> None:
        self._ticket_of = ticket_of
        self._contest = Contest(barrier)
        self._waiting: dict[str, tuple[Request, Ticket]] = {}
        self._first_place = 0
        self._next_place = 1
        self._pinned: list[str] = []
        self._chosen: Ticket | None = None

    def begin_step(self, table: WeightTable, now_s: float, gate: Gate | None = None) -> None:
        """Fix what orders the requests until ``end_step``.

        Args:
            table: the weights in force.
            now_s: the time of every decision of the step.
            gate: asked about a head when it is about to go next, and again about the next
                one: whether it may be admitted now. A head that may not closes its class
                until the step ends; the others go on. A gate that raises is open.
        """
        self._contest.begin_step(table, now_s, gate)
        self._chosen = None
        self._pinned.clear()

    def end_step(self) -> None:
        """Fall back to first come, first served until the next step begins."""
        self._contest.end_step()
        self._chosen = None
        self._pinned.clear()

    def pin(self, request_id: str) -> None:
        """In this step this waiting request goes next, whatever discipline and gate say.

        Pinned requests go in the order of their pins. A pin ends when the request leaves
        the queue, even if only to be skipped, and with the step.
        """
        self._pinned.append(request_id)
        self._chosen = None

    def ended(self, ticket: Ticket) -> None:
        """A live request came to its end, however; its ticket says what was generated."""
        self._contest.ended(ticket)
        self._chosen = None

    def heads(self) -> Iterator[tuple[Ticket, ClassPolicy]]:
        """In a step: the first of each class that the gate has not closed, in their order."""
        return iter(self._contest.heads())

    def request_of(self, ticket: Ticket) -> Request:
        """The waiting request that a ticket is of."""
        return self._waiting[ticket.request_id][0]

    def add_request(self, request: Request) -> None:
        """Queue an arrival at the end of its class."""
        ticket = self._ticket_of(request)
        ticket.place = self._next_place
        self._next_place += 1
        self._contest.append(ticket)
        self._enter(request, ticket)

    def prepend_request(self, request: Request) -> None:
        """Queue a preempted request first: it has started, so it goes before its class."""
        ticket = self._ticket_of(request)
        ticket.place = self._first_place
        self._first_place -= 1
        self._contest.prepend(ticket)
        self._enter(request, ticket)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Return requests that the scheduler took out in this step and skipped.

        They come in the reverse of the order in which they were taken out, and each goes
        back to the place it had: skipping costs nothing.
        """
        for request in requests:
            ticket = self._ticket_of(request)
            self._contest.prepend(ticket)
            self._enter(request, ticket)

    def peek_request(self) -> Request:
        """The request that goes next.

        Raises:
            IndexError: nothing waits, or in a step nothing that may be admitted.
        """
        ticket = self._chosen or self._next()
        return self._waiting[ticket.request_id][0]

    def pop_request(self) -> Request:
        """Take out the request that goes next.

        Raises:
            IndexError: nothing waits, or in a step nothing that may be admitted.
        """
        ticket = self._chosen or self._next()
        self._chosen = None
        # What is pinned and waits goes before all else: a pin that is left is this one's.
        pinned = bool(self._pinned)
        if pinned:
            del self._pinned[0]
        if self._contest.charges:
            self._contest.charge(ticket, in_turn=not pinned)
        self._contest.leave(ticket)
        return self._waiting.pop(ticket.request_id)[0]

    def remove_request(self, request: Request) -> None:
        """Take out this request.

        Raises:
            ValueError: it does not wait here.
        """
        if request not in self:
            raise ValueError(f"request {request.request_id} does not wait")
        self._remove(request.request_id)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Take out those of the requests that wait here, in time linear in their number."""
        for request in requests:
            if request in self:
                self._remove(request.request_id)

    def past_slo(self, task_class: str) -> int:
        """How many of a class have waited longer than its TTFT objective."""
        return self._contest.past_slo(task_class)

    def turned_late(self, task_class: str) -> int:
        """How many of a class were ever seen to wait longer than that."""
        return self._contest.turned_late(task_class)

    def oldest_arrival_s(self, task_class: str) -> float | None:
        """When the oldest waiting request of a class arrived; None: none waits."""
        return self._contest.oldest_arrival_s(task_class)

    def __contains__(self, request: object) -> bool:
        return isinstance(request, Request) and request.request_id in self._waiting

    def __bool__(self) -> bool:
        """In a step, whether something waits that may be admitted; else, whether anything does."""
        if self._chosen is not None:
            return True
        if self._contest.in_step:
            return self._choose() is not None
        return bool(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        """By place: as vLLM's FCFS queue."""
        by_place = sorted(self._waiting.values(), key=lambda waiting: waiting[1].place)
        return (request for request, _ in by_place)

    def _enter(self, request: Request, ticket: Ticket) -> None:
        self._waiting[ticket.request_id] = request, ticket
        self._chosen = None

    def _remove(self, request_id: str) -> None:
        self._chosen = None
        self._contest.leave(self._waiting.pop(request_id)[1])

    def _next(self) -> Ticket:
        ticket = self._choose()
        if ticket is None:
            raise IndexError("nothing waits that may be admitted")
        return ticket

    def _choose(self) -> Ticket | None:
        self._chosen = (self._pinned and self._first_pinned()) or self._contest.leader()
        return self._chosen

    def _first_pinned(self) -> Ticket | None:
        """The first pinned request that still waits."""
        while self._pinned:
            waiting = self._waiting.get(self._pinned[0])
            if waiting is not None:
                return waiting[1]
            del self._pinned[0]
        return None
