"""All guardrails in their order, as one decision.

Legend: C classes, T steps. All arrays are [C] in configured order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from controlplane.guardrails.box import Boxed, finite, into_box, kept
from controlplane.guardrails.budget import Ledger
from controlplane.guardrails.cost import Load, estimated_cost, load_of
from controlplane.guardrails.hysteresis import settle
from controlplane.guardrails.mutation import mutated
from controlplane.guardrails.rails import Fired, Guardrail, Mask, fired
from controlplane.guardrails.shares import Shares
from controlplane.guardrails.trust import blended, trust_in
from models.classes import TaskClass
from models.window import Window, known

_SAME = 1e-9
"""Shares that differ by less in their logarithm are the same."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The numbers of the guardrails.

    Attributes:
        max_log_share_step: in one tick.
        mutation_log_share_step: the same, in a tick that sees the traffic jump.
        mutation_score: standard errors that make a jump.
        familiar_within: in widths of a feature's range in training; up to here full trust.
        unfamiliar_beyond: from here on none.
        hysteresis_start: a move begins when a log-share is off by more.
        hysteresis_stop: and is over when none moves by more.
        budget_ratio: of the rule's estimated cost.
        budget_allowance: on top, in ticks in which everything is lost.
        budget_half_life_ticks: after so many, a cost counts half.
        stale_steps: of the window; a class without a measurement in these keeps its share.

    Raises:
        ValueError: two of them contradict each other.
    """

    max_log_share_step: float = 0.2
    mutation_log_share_step: float = 1.0
    mutation_score: float = 6.0
    familiar_within: float = 0.25
    unfamiliar_beyond: float = 1.0
    hysteresis_start: float = 0.02
    hysteresis_stop: float = 0.005
    budget_ratio: float = 1.05
    budget_allowance: float = 1.0
    budget_half_life_ticks: float = 720.0
    stale_steps: int = 4

    def __post_init__(self) -> None:
        """Each pair has an order."""
        pairs = (
            ("max_log_share_step", "mutation_log_share_step"),
            ("familiar_within", "unfamiliar_beyond"),
            ("hysteresis_stop", "hysteresis_start"),
        )
        for low, high in pairs:
            if not 0 <= getattr(self, low) <= getattr(self, high):
                raise ValueError(
                    f"{low} ({getattr(self, low):g}) is above {high} ({getattr(self, high):g})"
                )
        if self.familiar_within == self.unfamiliar_beyond:
            raise ValueError("familiar_within and unfamiliar_beyond are the same")


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a forecaster wants, and what the window says about it.

    Attributes:
        wanted: on any scale; may hold anything, NaN included.
        rule: the rule's shares; > 0, summing to 1.
        unfamiliarity: of the features, in widths of their range in training; 0 under the rule.
        measured: whether anything of the class was measured lately.
        jumped: whether its traffic did.
    """

    wanted: Shares
    rule: Shares
    unfamiliarity: Shares
    measured: Mask
    jumped: Mask
    load: Load


@dataclass(frozen=True, slots=True)
class Course:
    """What one decision leaves for the next.

    Attributes:
        shares: in force; sum to 1, none below its floor.
        ruled: where the shares would be had the rule always played.
        moving: a move is under way.
    """

    shares: Shares
    ruled: Shares
    moving: bool = False
    ledger: Ledger = field(default_factory=Ledger)

    @classmethod
    def starting(cls, shares: Shares) -> "Course":
        """From these shares on, with nothing spent."""
        return cls(shares, shares)

    def restarted(self, shares: Shares) -> "Course":
        """From these shares on, with what is spent."""
        return Course(shares, shares, ledger=self.ledger)


@dataclass(frozen=True, slots=True)
class Ruling:
    """Shares fit to publish, per class what fired, and where that leaves things.

    Attributes:
        trust: in the forecaster, in [0, 1].
        rule_because: why the rule plays instead of the forecaster; None: it does not.
    """

    course: Course
    fired: Fired
    trust: float
    rule_because: str | None

    @property
    def shares(self) -> Shares:
        """To publish: [C]."""
        return self.course.shares


def propose(
    window: Window,
    task_classes: Sequence[TaskClass],
    bounds: Bounds,
    *,
    wanted: Shares,
    rule: Shares,
    unfamiliarity: Shares,
) -> Proposal:
    """A forecast on a window, as `decide` takes it: it and what the window says besides."""
    lately = [known(values[:, -bounds.stale_steps :]) for values in window.signals.values()]
    return Proposal(
        wanted=wanted,
        rule=rule,
        unfamiliarity=unfamiliarity,
        measured=np.logical_or.reduce(lately).any(axis=1),  # [C]
        jumped=mutated(window, score=bounds.mutation_score),
        load=load_of(window, task_classes),
    )


def decide(proposal: Proposal, course: Course, *, floors: Shares, bounds: Bounds) -> Ruling:
    """One tick. The shares sum to 1, keep their floors and move no further than they may.

    Args:
        proposal: what the forecaster wants in this tick.
        course: what the tick before left.
        floors: [C] least shares; sum below 1.
        bounds: the guardrails' numbers.
    """
    trust = trust_in(
        proposal.unfamiliarity, within=bounds.familiar_within, beyond=bounds.unfamiliar_beyond
    )
    box = _Box(proposal, floors, bounds)
    trusted = blended(proposal.wanted, proposal.rule, trust)
    boxed = box.hold(trusted, course.shares)
    settled, moving = settle(
        boxed.shares,
        previous=course.shares,
        moving=course.moving,
        start=bounds.hysteresis_start,
        stop=bounds.hysteresis_stop,
    )
    ruled = box.hold(proposal.rule, course.ruled).shares
    costs = estimated_cost(settled, proposal.load), estimated_cost(ruled, proposal.load)
    affordable = course.ledger.affords(
        *costs, ratio=bounds.budget_ratio, allowance=bounds.budget_allowance
    )
    shares = settled if affordable else box.hold(proposal.rule, course.shares).shares
    ledger = course.ledger.charged(
        estimated_cost(shares, proposal.load),
        costs[1],
        keep=0.5 ** (1.0 / bounds.budget_half_life_ticks),
    )
    conditions = {
        Guardrail.FINITE: ~finite(proposal.wanted),
        Guardrail.STALE: ~proposal.measured,
        Guardrail.UNFAMILIAR: _differs(trusted, proposal.wanted),
        Guardrail.STEP: boxed.stepped,
        Guardrail.MUTATION: _differs(shares, course.shares, bounds.max_log_share_step),
        Guardrail.HYSTERESIS: _differs(settled, boxed.shares),
        Guardrail.FLOOR: boxed.floored,
        Guardrail.BUDGET: _differs(shares, settled),
    }
    return Ruling(
        Course(shares, ruled, moving or not affordable, ledger),
        fired(conditions),
        trust,
        _rule_because(trust, course.ledger, costs, affordable=affordable),
    )


@dataclass(frozen=True, slots=True)
class _Box:
    """The box of a tick, around any shares."""

    proposal: Proposal
    floors: Shares
    bounds: Bounds

    def hold(self, wanted: Shares, previous: Shares) -> Boxed:
        """Wanted weights [C] on any scale, in the box around the previous shares."""
        usable = finite(wanted) & self.proposal.measured
        jumped = self.proposal.jumped.any()
        bounds = self.bounds
        step = bounds.mutation_log_share_step if jumped else bounds.max_log_share_step
        target = kept(wanted, usable, previous)
        return into_box(target, previous=previous, floors=self.floors, step=step)


def _differs(one: Shares, other: Shares, by: float = 0.0) -> Mask:
    """Where two vectors of weights, each on its own scale, differ in log-share: [C].

    What is unusable in either differs from nothing.
    """
    usable = finite(one) & finite(other)
    if not usable.any():
        return usable
    with np.errstate(divide="ignore", invalid="ignore"):  # the unusable
        logs = np.log(one / one[usable].sum()) - np.log(other / other[usable].sum())
    far: Mask = usable & (np.abs(logs) > by + _SAME)
    return far


def _rule_because(
    trust: float, ledger: Ledger, costs: tuple[float, float], *, affordable: bool
) -> str | None:
    if not affordable:
        played, rule = ledger.played + costs[0], ledger.rule + costs[1]
        return (
            f"budget: the model's estimated cost is {played / max(rule, 1e-12):.3f} of the rule's"
        )
    if trust <= 0.0:
        return "out of distribution: the window is unlike what the model learned from"
    return None
