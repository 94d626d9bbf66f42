"""What stands between a model and the engines: guardrails, dither, the canary."""

import math
from typing import Self

from pydantic import Field, model_validator

from controlplane.canary import TrialLimits, TrialPolicy
from controlplane.config.values import Positive, Seconds, Section
from controlplane.dither import MAX_AMPLITUDE
from controlplane.guardrails import Bounds
from controlplane.modes import MissLimits
from models.window import STEP_S


class GuardrailsSection(Section):
    """Bounds on what any model may do."""

    max_log_share_step: Positive = Field(
        0.2, description="largest change of a class's log-share in one tick"
    )
    mutation_log_share_step: Positive = Field(
        1.0, description="the same, in a tick in which arrivals of a class jump"
    )
    mutation_score: Positive = Field(
        6.0, description="standard errors by which a rate of arrivals must change for a jump"
    )
    familiar_within: float = Field(
        0.25,
        ge=0,
        description="how far a feature may be outside its range in training, in widths of that "
        "range, before the model's say is reduced",
    )
    unfamiliar_beyond: float = Field(1.0, gt=0, description="likewise; from here on the rule plays")
    hysteresis_start: float = Field(
        0.02, ge=0, description="shares move once a log-share is off by more"
    )
    hysteresis_stop: float = Field(
        0.005, ge=0, description="and until none moves by more in one tick"
    )
    budget_ratio: float = Field(
        1.05, ge=1, description="the model's estimated cost over the rule's; above, the rule plays"
    )
    budget_allowance: float = Field(
        1.0, ge=0, description="on top of it, in ticks in which all value is lost"
    )
    budget_half_life_s: Seconds = Field(
        3600.0, description="after that long an estimated cost counts half"
    )
    hold_after_missed: int = Field(
        2, ge=1, description="missed windows in a row until the mode is `hold`"
    )
    static_after_missed: int = Field(
        6, ge=2, description="missed windows in a row until the mode is `static`"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        MissLimits(self.hold_after_missed, self.static_after_missed)
        self.bounds(tick_s=1.0, staleness_s=1.0)
        return self

    def bounds(self, *, tick_s: float, staleness_s: float) -> Bounds:
        """The guardrails' numbers, times in ticks and steps.

        Raises:
            ValueError: two of them contradict each other; the message names both.
        """
        return Bounds(
            max_log_share_step=self.max_log_share_step,
            mutation_log_share_step=self.mutation_log_share_step,
            mutation_score=self.mutation_score,
            familiar_within=self.familiar_within,
            unfamiliar_beyond=self.unfamiliar_beyond,
            hysteresis_start=self.hysteresis_start,
            hysteresis_stop=self.hysteresis_stop,
            budget_ratio=self.budget_ratio,
            budget_allowance=self.budget_allowance,
            budget_half_life_ticks=self.budget_half_life_s / tick_s,
            stale_steps=max(1, math.ceil(staleness_s / STEP_S)),
        )

    @property
    def miss_limits(self) -> MissLimits:
        """The two limits on missed windows."""
        return MissLimits(self.hold_after_missed, self.static_after_missed)


class DitherSection(Section):
    """Small known changes of the weights, so that what they do can be told."""

    amplitude: float = Field(
        0.0, ge=0, le=MAX_AMPLITUDE, description="in log-weight, before the guardrails; 0: none"
    )
    hold_s: Seconds = Field(30.0, description="how long a change lasts before it is drawn anew")
    seed: int = Field(0, description="of the changes")
    include_p0: bool = Field(
        default=False, description="whether classes of tier `p0` are changed, too"
    )


class CanarySection(Section):
    """Another model on some of the engines, by turns with the champion."""

    enabled: bool = Field(
        default=True,
        description="try a challenger whose gates passed, promote it if it is no worse, and watch "
        "a new champion, going back if it does harm",
    )
    ratio: float = Field(0.1, gt=0, le=1, description="part of the engines; at least one")
    block_s: Seconds = Field(60.0, description="length of a turn")
    washout_s: float = Field(
        15.0, ge=0, description="start of a turn that does not count: the queues are still old"
    )
    alpha: float = Field(
        0.05, gt=0, lt=1, description="probability of a wrong `harm`, and of a wrong `no_worse`"
    )
    margin: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="by which the part of the value that is lost may be larger and still be no "
        "worse",
    )
    max_pairs: int = Field(
        480, ge=1, le=100_000, description="pairs of turns until a trial ends undecided"
    )
    watch_s: float = Field(
        86_400.0, ge=0, description="how long a new champion is watched at most; 0: not at all"
    )

    @property
    def policy(self) -> TrialPolicy:
        """The same, as the trials take it."""
        return TrialPolicy(
            ratio=self.ratio,
            block_s=self.block_s,
            washout_s=self.washout_s,
            limits=TrialLimits(self.alpha, self.margin, self.max_pairs),
            watch_s=self.watch_s,
        )
