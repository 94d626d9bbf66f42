"""Accounting per class, in plain numbers.

The scheduler's thread writes, the exporter's thread reads. Counts only grow, and each is
one attribute that one thread writes; observations travel in deques, whose append and
popleft are atomic. So neither side waits for the other.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from dataplane.ticket import Ticket
from dataplane.weights import Slo

# Bounds the memory if the exporter stalls: minutes of observations at any sane rate.
_PENDING_OBSERVATIONS = 100_000


class Outcome(StrEnum):
    """How a request ended."""

    MET = "met"
    """It met every objective of its class."""
    LATE = "late"
    FAILED = "failed"
    ABORTED = "aborted"


def _pending() -> deque[float]:
    return deque(maxlen=_PENDING_OBSERVATIONS)


@dataclass(slots=True)
class Tally:
    """What one class has seen.

    Attributes:
        live: waiting and running requests together.
        judged: requests that were served or failed, but for those that turned late in the
            queue: these are judged there.
        violated: of the judged ones, late or failed.
    """

    arrived: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preempted: int = 0
    recomputed_tokens: int = 0
    finished: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    judged: int = 0
    violated: int = 0
    live: int = 0
    running: int = 0
    waiting_prompt_tokens: int = 0
    queue_time_s: deque[float] = field(default_factory=_pending)
    ttft_s: deque[float] = field(default_factory=_pending)
    tpot_s: deque[float] = field(default_factory=_pending)
    e2e_s: deque[float] = field(default_factory=_pending)

    def behind_head(self, head_tokens: int, at_most: int) -> tuple[int, int]:
        """How many wait behind the head, up to so many, and the prompt tokens of as many."""
        behind = self.live - self.running - 1
        if behind <= 0:
            return 0, 0
        more = min(behind, at_most)
        return more, max(0, self.waiting_prompt_tokens - head_tokens) * more // behind


class Meter:
    """Follows requests from arrival to end. All calls come from the scheduler's thread.

    Attributes:
        tallies: by class; classes are only ever added.
        live: requests that have arrived and not ended, over all classes.
        waiting_prompt_tokens: of all requests that wait.
    """

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}
        self.live = 0
        self.waiting_prompt_tokens = 0
        self._admissions = 0

    def tally(self, task_class: str) -> Tally:
        """The class's tally, made at the first call."""
        tally = self.tallies.get(task_class)
        if tally is None:
            tally = self.tallies[task_class] = Tally()
        return tally

    def arrived(self, ticket: Ticket) -> None:
        """A request entered the queue."""
        tally = self.tally(ticket.task_class)
        tally.arrived += 1
        tally.prompt_tokens += ticket.prompt_tokens
        tally.live += 1
        self.live += 1
        self._waits(tally, ticket.prompt_tokens)

    def dispatched(self, ticket: Ticket, now_s: float) -> None:
        """A request got onto the engine, for the first time or again."""
        tally = self.tally(ticket.task_class)
        self._admissions += 1
        ticket.admission = self._admissions
        ticket.admitted_s = now_s
        if not ticket.running:
            ticket.running = True
            tally.running += 1
            self._waits(tally, -ticket.prompt_tokens)
        if ticket.dispatched_s is None:
            ticket.dispatched_s = now_s
            tally.queue_time_s.append(now_s - ticket.arrived_s)

    def preempted(self, ticket: Ticket, computed_tokens: int) -> None:
        """A running request went back to the queue and lost what was computed for it."""
        tally = self.tally(ticket.task_class)
        tally.preempted += 1
        tally.recomputed_tokens += computed_tokens
        ticket.preemptions += 1
        self._stops_running(ticket, tally)
        self._waits(tally, ticket.prompt_tokens)

    def first_token(self, ticket: Ticket, now_s: float) -> None:
        """The step that ended at ``now_s`` gave the request's first token."""
        if ticket.first_token_s is None:
            ticket.first_token_s = now_s
            self.tally(ticket.task_class).ttft_s.append(now_s - ticket.arrived_s)

    def generated(self, ticket: Ticket, total_tokens: int) -> None:
        """The request has this many output tokens by now."""
        if total_tokens > ticket.generated_tokens:
            tally = self.tally(ticket.task_class)
            tally.generated_tokens += total_tokens - ticket.generated_tokens
            ticket.generated_tokens = total_tokens

    def finished(self, ticket: Ticket, outcome: Outcome, now_s: float) -> None:
        """A request ended."""
        tally = self.tally(ticket.task_class)
        if not ticket.running:
            self._waits(tally, -ticket.prompt_tokens)
        self._stops_running(ticket, tally)
        tally.live -= 1
        self.live -= 1
        tally.finished[outcome] += 1
        if not ticket.overdue and outcome is not Outcome.ABORTED:
            tally.judged += 1
            tally.violated += outcome is not Outcome.MET
        if outcome in (Outcome.MET, Outcome.LATE):
            tally.e2e_s.append(now_s - ticket.arrived_s)
            tpot_s = mean_tpot_s(ticket, now_s)
            if tpot_s is not None:
                tally.tpot_s.append(tpot_s)

    def running_classes(self) -> Iterator[str]:
        """The classes of which something runs."""
        return (name for name, tally in self.tallies.items() if tally.running)

    def _waits(self, tally: Tally, prompt_tokens: int) -> None:
        tally.waiting_prompt_tokens += prompt_tokens
        self.waiting_prompt_tokens += prompt_tokens

    @staticmethod
    def _stops_running(ticket: Ticket, tally: Tally) -> None:
        if ticket.running:
            ticket.running = False
            tally.running -= 1


def mean_tpot_s(ticket: Ticket, now_s: float) -> float | None:
    """Mean time per token after the first; None while there is at most one."""
    if ticket.first_token_s is None or ticket.generated_tokens < 2:  # noqa: PLR2004 - the one after the first
        return None
    return (now_s - ticket.first_token_s) / (ticket.generated_tokens - 1)


def judge(ticket: Ticket, slo: Slo, now_s: float) -> Outcome:
    """Whether a request whose last token came at ``now_s`` met all objectives of its class."""
    first_s = now_s if ticket.first_token_s is None else ticket.first_token_s
    met = (
        _within(first_s - ticket.arrived_s, slo.ttft_s)
        and _within(mean_tpot_s(ticket, now_s), slo.tpot_s)
        and _within(now_s - ticket.arrived_s, slo.e2e_s)
    )
    return Outcome.MET if met else Outcome.LATE


def _within(measured_s: float | None, objective_s: float | None) -> bool:
    return measured_s is None or objective_s is None or measured_s <= objective_s
