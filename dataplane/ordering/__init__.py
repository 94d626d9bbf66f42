"""Disciplines: which of the heads of the class queues goes next.

A discipline is a pure function that states the claim of a head; the largest index goes
next, and equal indices go by place. So every discipline is work-conserving: as long as
something waits, something is chosen. None looks at a class's name, so renaming classes
changes nothing. Larger is more urgent, in weights, values and indices alike.

Legend: a head is the first request of a class in the class's own order; w_k, value_k and
slo_k are the weight, the value and the TTFT objective of its class k in seconds, age its time
since arrival in seconds.
"""

from collections.abc import Mapping
from types import MappingProxyType

from dataplane.ordering.account import Account
from dataplane.ordering.aging import apq, cp_score, gcmu
from dataplane.ordering.claim import (
    IN_TIME,
    LATE,
    OVERDUE,
    Claim,
    Ordering,
    is_late,
    overdue,
)
from dataplane.ordering.fair import FairClock, wfq
from dataplane.ordering.fixed import edf, fcfs, strict
from dataplane.weights import Discipline

__all__ = [
    "IN_TIME",
    "LATE",
    "ORDERINGS",
    "OVERDUE",
    "Account",
    "Claim",
    "FairClock",
    "Ordering",
    "is_late",
    "overdue",
]

ORDERINGS: Mapping[Discipline, Ordering] = MappingProxyType(
    {
        Discipline.APQ: apq,
        Discipline.FCFS: fcfs,
        Discipline.GCMU: gcmu,
        Discipline.WFQ: wfq,
        Discipline.EDF: edf,
        Discipline.STRICT: strict,
        Discipline.CP_SCORE: cp_score,
    }
)
