"""Disciplines whose order among given heads stays as it is while they wait."""

from dataplane.ordering.account import Account
from dataplane.ordering.claim import Claim
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy


def fcfs(_ticket: Ticket, _policy: ClassPolicy, _account: Account) -> Claim:
    """First come, first served: all indices are equal, so the smallest place goes next.

    Stock vLLM's order exactly, and therefore the only discipline in which neither
    ``max_wait_s`` nor ``late`` has a say. Fair in waiting time and blind to everything
    else: one long prompt delays all who come after it.
    """
    return 0.0, 0.0


def strict(_ticket: Ticket, policy: ClassPolicy, _account: Account) -> Claim:
    """The largest weight first; equal weights by place.

    Static priority without preemption (A. Cobham, "Priority assignment in waiting line
    problems", Operations Research 2, 1954). The best for the heaviest class; a light one
    starves whenever those above it fill the engine, unless ``max_wait_s`` bounds its wait.
    """
    return policy.weight, 0.0


def edf(ticket: Ticket, policy: ClassPolicy, _account: Account) -> Claim:
    """The earliest deadline first: the smallest ``arrived + slo_k``, whatever the weights.

    If any order meets all deadlines, so does this one (C. L. Liu and J. W. Layland,
    "Scheduling algorithms for multiprogramming in a hard-real-time environment", Journal of
    the ACM 20, 1973). In overload it serves what is late already and makes the rest late
    too: combine it with ``demote``.
    """
    return -(ticket.arrived_s + policy.slo.ttft_s), 0.0
