"""Disciplines: which of the heads of the class queues goes next.

A discipline is a pure function that gives a head its standing at a given time; the largest
standing goes next. So every discipline is work-conserving: as long as something waits,
something is chosen. None looks at a class's name, so renaming classes changes nothing.

Legend: a head is the first request of a class in the class's own order; w_k and slo_k are
the weight and the TTFT objective of its class k, age_k its time since arrival.
"""

from collections.abc import Callable

from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, Discipline, LatePolicy

Standing = tuple[int, float, int]
"""Rank, index within the rank, and minus the place, which is unique: no two are equal."""

Ordering = Callable[[Ticket, ClassPolicy, float], Standing]

LATE, IN_TIME, OVERDUE = range(3)


def fcfs(ticket: Ticket, policy: ClassPolicy, now_s: float) -> Standing:  # noqa: ARG001 - one signature for all
    """First come, first served: the smallest place, whatever the class and the time."""
    return IN_TIME, 0.0, -ticket.place


def apq(ticket: Ticket, policy: ClassPolicy, now_s: float) -> Standing:
    """Accumulating priority: the largest index ``w_k * age_k / slo_k``.

    Every class with a positive weight overtakes any other by waiting, so none starves; and
    as the index is computed at the dispatch, a new weight acts on what is queued already.
    Linear accumulation is Kleinrock's delay-dependent priority (1964, "A delay dependent
    queue discipline"); read as a slope of cost it is the generalised c-mu rule with
    quadratic cost (Van Mieghem 1995, "Dynamic scheduling with convex delay costs", section 3).

    Two things stand above the index. A head that waited longer than its class's
    ``max_wait_s`` goes first, the most overdue of them leading. Under ``demote`` a head
    that can no longer make its objective goes after all that can.
    """
    age_s = now_s - ticket.arrived_s
    if policy.max_wait_s is not None and age_s > policy.max_wait_s:
        return OVERDUE, age_s - policy.max_wait_s, -ticket.place
    demoted = policy.late is LatePolicy.DEMOTE and is_late(ticket, policy, now_s)
    return LATE if demoted else IN_TIME, policy.gain_per_s * age_s, -ticket.place


ORDERINGS: dict[Discipline, Ordering] = {Discipline.APQ: apq, Discipline.FCFS: fcfs}


def is_late(ticket: Ticket, policy: ClassPolicy, now_s: float) -> bool:
    """Whether the request can no longer make its TTFT objective.

    A request that has been on the engine before (it was preempted) is never late in this
    sense: what is left of it is progress that others have already paid for.
    """
    return ticket.dispatched_s is None and now_s - ticket.arrived_s > policy.slo.ttft_s


def running_rank(weight: float, *, prefilling: bool, memory_short: bool) -> tuple[bool, float]:
    """Sort key of a running request: small is served first and preempted last.

    vLLM spends a step's token budget in the order of its running list and takes memory
    away from the list's end. While memory suffices for whatever the step may ask, only the
    budget counts: requests that decode come first, since each takes one token and a long
    prompt in front of them would take them all; then prompts by weight. When memory may
    run short, the end of the list is a victim, and weight alone decides.
    """
    return (prefilling and not memory_short, -weight)
