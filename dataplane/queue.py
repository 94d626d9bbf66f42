"""vLLM's waiting queue, kept per class and ordered by a discipline."""

from collections.abc import Callable, Iterable, Iterator

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from dataplane.faults import FaultBarrier
from dataplane.lanes import ClassLanes
from dataplane.ordering import ORDERINGS, Ordering, fcfs
from dataplane.ticket import Ticket
from dataplane.weights import WeightTable


class ClassRequestQueue(RequestQueue):  # type: ignore[misc] # vLLM ships no type information
    """One FIFO per class; the discipline of the step chooses among their heads.

    Every request has a place: arrivals count up, preempted ones count down, and a request
    that the scheduler took out and skipped comes back to the place it had. Sorted by place
    the queue is exactly vLLM's FCFS queue, whatever disciplines were in force meanwhile.

    Between ``begin_step`` and ``end_step`` table and time stand still, so ``peek_request``
    and ``pop_request`` name the same request even if a new snapshot lands in between.
    Outside of a step, and when a discipline fails, the order is first come, first served.

    Args:
        ticket_of: gives the plugin's record of a request; must not raise.
        barrier: ends faults of the disciplines.
    """

    def __init__(self, ticket_of: Callable[[Request], Ticket], barrier: FaultBarrier) -> None:
        self._ticket_of = ticket_of
        self._barrier = barrier
        self._waiting: dict[str, tuple[Request, Ticket]] = {}
        self._lanes: dict[str, ClassLanes] = {}
        self._first_place = 0
        self._next_place = 1
        self._table = WeightTable.initial()
        self._now_s = 0.0
        self._ordering: Ordering = fcfs
        self._chosen: Ticket | None = None

    def begin_step(self, table: WeightTable, now_s: float) -> None:
        """Fix what orders the requests until ``end_step``."""
        self._table, self._now_s = table, now_s
        for task_class, lanes in self._lanes.items():
            lanes.settle(table.policy(task_class), now_s)
        self._ordering, self._chosen = ORDERINGS[table.discipline], None

    def end_step(self) -> None:
        """Fall back to first come, first served until the next step begins."""
        self._ordering, self._chosen = fcfs, None
        for lanes in self._lanes.values():
            lanes.contender = None

    def add_request(self, request: Request) -> None:
        """Queue an arrival at the end of its class."""
        ticket = self._ticket_of(request)
        ticket.place = self._next_place
        self._next_place += 1
        self._enter(request, ticket).append(ticket)

    def prepend_request(self, request: Request) -> None:
        """Queue a preempted request first: it has started, so it goes before its class."""
        ticket = self._ticket_of(request)
        ticket.place = self._first_place
        self._first_place -= 1
        self._enter(request, ticket).prepend(ticket)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Return requests that the scheduler took out in this step and skipped.

        They come in the reverse of the order in which they were taken out, and each goes
        back to the place it had: skipping costs nothing.
        """
        for request in requests:
            ticket = self._ticket_of(request)
            self._enter(request, ticket).prepend(ticket)

    def peek_request(self) -> Request:
        """The request that goes next.

        Raises:
            IndexError: nothing waits.
        """
        return self._waiting[self._next().request_id][0]

    def pop_request(self) -> Request:
        """Take out the request that goes next.

        Raises:
            IndexError: nothing waits.
        """
        return self._leave(self._next().request_id)

    def remove_request(self, request: Request) -> None:
        """Take out this request.

        Raises:
            ValueError: it does not wait here.
        """
        if request not in self:
            raise ValueError(f"request {request.request_id} does not wait")
        self._leave(request.request_id)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Take out those of the requests that wait here, in time linear in their number."""
        for request in requests:
            if request in self:
                self._leave(request.request_id)

    def past_slo(self, task_class: str) -> int:
        """How many of a class have waited longer than its TTFT objective."""
        lanes = self._lanes.get(task_class)
        return lanes.past_slo if lanes else 0

    def oldest_arrival_s(self, task_class: str) -> float | None:
        """When the oldest waiting request of a class arrived; None: none waits."""
        lanes = self._lanes.get(task_class)
        return lanes.oldest_arrival_s() if lanes else None

    def __contains__(self, request: object) -> bool:
        return isinstance(request, Request) and request.request_id in self._waiting

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        """By place: as vLLM's FCFS queue."""
        by_place = sorted(self._waiting.values(), key=lambda waiting: waiting[1].place)
        return (request for request, _ in by_place)

    def _enter(self, request: Request, ticket: Ticket) -> ClassLanes:
        self._chosen = None
        self._waiting[ticket.request_id] = request, ticket
        lanes = self._lanes.get(ticket.task_class)
        if lanes is None:
            lanes = ClassLanes(self._table.policy(ticket.task_class), self._now_s)
            self._lanes[ticket.task_class] = lanes
        return lanes

    def _leave(self, request_id: str) -> Request:
        self._chosen = None
        request, ticket = self._waiting.pop(request_id)
        lanes = self._lanes[ticket.task_class]
        lanes.remove(request_id)
        if not lanes.heads:
            del self._lanes[ticket.task_class]
        return request

    def _next(self) -> Ticket:
        if self._chosen is None:
            with self._barrier:
                self._chosen = self._best()
            if self._chosen is None:
                self._chosen = self._first()
        return self._chosen

    def _best(self) -> Ticket | None:
        ordering = self._ordering
        contenders = [lanes.contender or lanes.contend(ordering) for lanes in self._lanes.values()]
        return max(contenders)[-1] if contenders else None

    def _first(self) -> Ticket:
        heads = [head for lanes in self._lanes.values() for head in lanes.heads]
        if not heads:
            raise IndexError("nothing waits")
        return min(heads, key=lambda head: head.place)
