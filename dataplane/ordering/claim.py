"""What a discipline says about a head, and what stands above every discipline.

A head's index grows linearly in its age. So a discipline need not be asked again while the
head, its policy and its class's account stay the same: the queue keeps the claim and reads
it off at the time of each dispatch.
"""

from collections.abc import Callable

from dataplane.ordering.account import Account
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy

Claim = tuple[float, float]
"""Base and slope: the head's index at an age of a seconds is ``base + slope * a``."""

Ordering = Callable[[Ticket, ClassPolicy, Account], Claim]

LATE, IN_TIME, OVERDUE = range(3)
"""Ranks, in all disciplines but ``fcfs``: a head of a higher one goes first, whatever its index.

A head that waited longer than its class's ``max_wait_s`` is overdue. Under ``demote`` a head
that can no longer make its objective goes after all that can.
"""


def is_late(ticket: Ticket, policy: ClassPolicy, now_s: float) -> bool:
    """Whether the request can no longer make its TTFT objective.

    A request that has been on the engine before (it was preempted) is never late in this
    sense: what is left of it is progress that others have already paid for.
    """
    return ticket.dispatched_s is None and now_s > ticket.arrived_s + policy.slo.ttft_s


def overdue(_ticket: Ticket, policy: ClassPolicy, _account: Account) -> Claim:
    """Among overdue heads the longest past its bound leads: index ``age - max_wait_s``."""
    return -(policy.max_wait_s or 0.0), 1.0
