"""Accounting per class, in plain numbers.

The scheduler's thread writes, the exporter's thread reads. Counts only grow, and each is
one attribute that one thread writes; observations travel in deques, whose append and
popleft are atomic. So neither side waits for the other.
"""

from collections import deque
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
    """What one class has seen. ``live`` counts waiting and running requests together."""

    arrived: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preempted: int = 0
    finished: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    live: int = 0
    running: int = 0
    queue_time_s: deque[float] = field(default_factory=_pending)
    ttft_s: deque[float] = field(default_factory=_pending)
    tpot_s: deque[float] = field(default_factory=_pending)
    e2e_s: deque[float] = field(default_factory=_pending)


class Meter:
    """Follows requests from arrival to end. All calls come from the scheduler's thread.

    Attributes:
        tallies: by class; classes are only ever added.
        live: requests that have arrived and not ended, over all classes.
    """

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}
        self.live = 0
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

    def dispatched(self, ticket: Ticket, now_s: float) -> None:
        """A request got onto the engine, for the first time or again."""
        tally = self.tally(ticket.task_class)
        self._admissions += 1
        ticket.admission = self._admissions
        ticket.running = True
        tally.running += 1
        if ticket.dispatched_s is None:
            ticket.dispatched_s = now_s
            tally.queue_time_s.append(now_s - ticket.arrived_s)

    def preempted(self, ticket: Ticket) -> None:
        """A running request went back to the queue."""
        tally = self.tally(ticket.task_class)
        tally.preempted += 1
        self._stops_running(ticket, tally)

    def produced(self, ticket: Ticket, tokens: int, now_s: float) -> None:
        """A step that ended at ``now_s`` gave this many tokens to the request."""
        tally = self.tally(ticket.task_class)
        ticket.generated_tokens += tokens
        tally.generated_tokens += tokens
        if tokens and ticket.first_token_s is None:
            ticket.first_token_s = now_s
            tally.ttft_s.append(now_s - ticket.arrived_s)

    def finished(self, ticket: Ticket, outcome: Outcome, now_s: float) -> None:
        """A request ended."""
        tally = self.tally(ticket.task_class)
        self._stops_running(ticket, tally)
        tally.live -= 1
        self.live -= 1
        tally.finished[outcome] += 1
        if outcome in (Outcome.MET, Outcome.LATE):
            tally.e2e_s.append(now_s - ticket.arrived_s)
            tpot_s = mean_tpot_s(ticket, now_s)
            if tpot_s is not None:
                tally.tpot_s.append(tpot_s)

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
