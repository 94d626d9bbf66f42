"""The queue by its definition: a list, searched through for each dispatch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, Discipline, LatePolicy, WeightTable


@dataclass
class Books:
    """What is known of a class: its mean generation, and its tag under wfq."""

    generation_tokens: float = 64.0
    requests: float = 4.0
    tag: float = 0.0

    def work(self, ticket: Ticket) -> float:
        most = self.generation_tokens if ticket.max_tokens is None else ticket.max_tokens
        return work(ticket, min(self.generation_tokens, most))


def work(ticket: Ticket, generated_tokens: float) -> float:
    return max(ticket.prompt_tokens + 4.0 * generated_tokens, 1.0)


def index(  # noqa: PLR0911 - a line per discipline
    discipline: Discipline, ticket: Ticket, policy: ClassPolicy, books: Books, now_s: float
) -> float:
    age_s, slo_s = now_s - ticket.arrived_s, policy.slo.ttft_s
    match discipline:
        case Discipline.APQ:
            return policy.weight / slo_s * age_s
        case Discipline.GCMU:
            return policy.value / books.work(ticket) / slo_s / slo_s * age_s
        case Discipline.WFQ:
            unpaid = books.work(ticket) if ticket.dispatched_s is None else 0.0
            return -(books.tag + unpaid / policy.weight)
        case Discipline.EDF:
            return -(ticket.arrived_s + slo_s)
        case Discipline.STRICT:
            return policy.weight
        case Discipline.CP_SCORE:
            tokens = ticket.prompt_tokens
            fixed = 0.4 / (1.2 * tokens + 120) + 0.3 * policy.weight + 0.2 * min(tokens / 8192, 1)
            return fixed + 0.1 * age_s
        case Discipline.FCFS:
            return 0.0


@dataclass
class ObviousQueue:
    """``waiting`` is in order of place; ``books`` and ``clock`` are the accounts."""

    table: WeightTable
    now_s: float = 0.0
    waiting: list[Ticket] = field(default_factory=list)
    books: dict[str, Books] = field(default_factory=dict)
    clock: float = 0.0
    charges: dict[str, float] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    pins: list[str] = field(default_factory=list)
    gate: Callable[[Ticket], bool] = lambda _: True

    def begin(self, table: WeightTable, now_s: float, gate: Callable[[Ticket], bool]) -> None:
        wfq = Discipline.WFQ
        if table.discipline is wfq and self.table.discipline is not wfq:
            self.clock = 0.0
            for books in self.books.values():
                books.tag = 0.0
        elif table.discipline is wfq:
            for name, books in self.books.items():
                before, after = (each.policy(name).weight for each in (self.table, table))
                if before != after:
                    books.tag = self.clock + (books.tag - self.clock) * before / after
        self.table, self.now_s, self.gate = table, now_s, gate
        self.closed, self.pins = set(), []

    def end(self) -> None:
        for task_class in self.closed:
            self.books[task_class].tag = max(self.books[task_class].tag, self.clock)
        self.closed = set()

    def enter(self, at: int, ticket: Ticket) -> None:
        books = self.books.setdefault(ticket.task_class, Books())
        if all(other.task_class != ticket.task_class for other in self.waiting):
            books.tag = max(books.tag, self.clock)
        self.waiting.insert(at, ticket)

    def late(self, ticket: Ticket) -> bool:
        due_s = ticket.arrived_s + self.table.policy(ticket.task_class).slo.ttft_s
        return ticket.dispatched_s is None and self.now_s > due_s

    def firsts(self) -> list[Ticket]:
        """The first of each class that is not closed: by rank, then by place.

        To choose from are the first that is late and the first that isn't: a request never
        overtakes one before it of the same class and kind.
        """
        heads: dict[tuple[str, bool], Ticket] = {}
        for ticket in self.waiting:
            heads.setdefault((ticket.task_class, self.late(ticket)), ticket)
        firsts: dict[str, Ticket] = {}
        for head in sorted(heads.values(), key=lambda head: (-self.rank(head), head.place)):
            firsts.setdefault(head.task_class, head)
        return [first for first in firsts.values() if first.task_class not in self.closed]

    def rank(self, ticket: Ticket) -> int:
        policy = self.table.policy(ticket.task_class)
        if self.table.discipline is Discipline.FCFS:
            return 1
        if policy.max_wait_s is not None and self.now_s > ticket.arrived_s + policy.max_wait_s:
            return 2
        return 0 if policy.late is LatePolicy.DEMOTE and self.late(ticket) else 1

    def standing(self, ticket: Ticket) -> tuple[int, float, int]:
        rank, policy = self.rank(ticket), self.table.policy(ticket.task_class)
        if rank == 2:
            assert policy.max_wait_s is not None
            return rank, self.now_s - ticket.arrived_s - policy.max_wait_s, -ticket.place
        books = self.books[ticket.task_class]
        by_index = index(self.table.discipline, ticket, policy, books, self.now_s)
        return rank, by_index, -ticket.place

    def choose(self) -> Ticket | None:
        for request_id in self.pins:
            for ticket in self.waiting:
                if ticket.request_id == request_id:
                    return ticket
        while True:
            best = max(self.firsts(), key=self.standing, default=None)
            if best is None or self.gate(best):
                return best
            self.closed.add(best.task_class)

    def pop(self, ticket: Ticket) -> None:
        books, pinned = self.books[ticket.task_class], ticket.request_id in self.pins
        if self.table.discipline is Discipline.WFQ and ticket.dispatched_s is None:
            if not pinned and self.rank(ticket) == 1:
                self.clock = max(self.clock, books.tag)
            self._charge(ticket, books.work(ticket))
        if pinned:
            self.pins.remove(ticket.request_id)
        self.waiting.remove(ticket)

    def give_back(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            if ticket.dispatched_s is None:
                self._charge(ticket, 0.0)
            smaller = [other for other in self.waiting if other.place < ticket.place]
            self.enter(len(smaller), ticket)

    def ended(self, ticket: Ticket) -> None:
        if ticket.dispatched_s is None:
            return
        books = self.books[ticket.task_class]
        books.requests = min(books.requests + 1, 256.0)
        books.generation_tokens += (
            ticket.generated_tokens - books.generation_tokens
        ) / books.requests
        if self.charges.get(ticket.request_id):
            self._charge(ticket, work(ticket, ticket.generated_tokens))

    def _charge(self, ticket: Ticket, tokens: float) -> None:
        charged = self.charges.get(ticket.request_id, 0.0)
        if tokens != charged:
            weight = self.table.policy(ticket.task_class).weight
            self.books[ticket.task_class].tag += (tokens - charged) / weight
            self.charges[ticket.request_id] = tokens
