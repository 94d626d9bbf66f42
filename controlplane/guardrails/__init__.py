"""Bounds on what any forecaster may publish. Pure.

In the order in which they act on a wanted vector of weights:

    finite, stale       a class without a usable number, or without a measurement, keeps its share
    unfamiliar          features unlike those learned from: the wanted weights blend into the rule's
    step, mutation      no log-share moves further in one tick than it may
    hysteresis          what is hardly off stays
    floor               no class falls below its floor
    budget              estimated to cost more than the rule for long: the rule plays

Step and floor hold at once (`box`). `decide` composes them all.
"""

from controlplane.guardrails.box import Guarded, guard
from controlplane.guardrails.budget import Ledger
from controlplane.guardrails.decide import Bounds, Course, Proposal, Ruling, decide, propose
from controlplane.guardrails.rails import Guardrail
from controlplane.guardrails.shares import Shares, default_shares, floor_shares

__all__ = [
    "Bounds",
    "Course",
    "Guarded",
    "Guardrail",
    "Ledger",
    "Proposal",
    "Ruling",
    "Shares",
    "decide",
    "default_shares",
    "floor_shares",
    "guard",
    "propose",
]
