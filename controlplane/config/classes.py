"""The task classes, and which requests belong to them."""

from typing import Self

from pydantic import Field, model_validator

from controlplane.config.values import ClassName, Priority, Seconds, Section, ShortText, Tokens
from models.classes import LatePolicy, Slo, TaskClass, Tier

MAX_CLASSES = 256
"""Engines refuse snapshots with more."""
MAX_RULES = 256
"""Likewise."""


class SloSection(Section):
    """Objective of a class."""

    ttft_s: Seconds = Field(description="time to first token")
    tpot_s: Seconds | None = Field(None, description="time per output token after the first")
    e2e_s: Seconds | None = Field(None, description="arrival to last token")


class ClassSection(Section):
    """One task class."""

    slo: SloSection
    value: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="worth of one request that meets its SLO"
    )
    floor: float = Field(0.0, ge=0, lt=1, description="least share of the weight")
    late: LatePolicy = Field(
        LatePolicy.SERVE, description="`serve` or `demote` requests already past their SLO"
    )
    max_wait_s: Seconds | None = Field(None, description="a request that waited longer goes first")
    tier: Tier = Field(
        Tier.P1,
        description="`p0`, `p1` or `p2`: who is held back last when memory or time run short",
    )

    def named(self, name: str) -> TaskClass:
        """The class, under its name in the file."""
        return TaskClass(
            name=name,
            slo=Slo(self.slo.ttft_s, self.slo.tpot_s, self.slo.e2e_s),
            value=self.value,
            floor=self.floor,
            late=self.late,
            max_wait_s=self.max_wait_s,
            tier=self.tier,
        )


class RuleSection(Section):
    """Puts requests that name no class into one. All conditions given must hold."""

    task_class: ClassName = Field(description="a configured class")
    min_prompt_tokens: Tokens | None = Field(None, description="inclusive")
    max_prompt_tokens: Tokens | None = Field(None, description="inclusive")
    min_max_tokens: Tokens | None = Field(
        None, description="of the most tokens that may be generated; inclusive"
    )
    max_max_tokens: Tokens | None = Field(None, description="inclusive")
    lora: ShortText | None = Field(None, description="the adapter's name")
    min_priority: Priority | None = Field(
        None, description="of the API's `priority`, where small is urgent; inclusive"
    )
    max_priority: Priority | None = Field(None, description="inclusive")
    tenant: ShortText | None = Field(None, description="`vllm_xargs.tenant`, or `X-Tenant`")
    streaming: bool | None = Field(None, description="whether the answer is streamed")

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        for subject in ("prompt_tokens", "max_tokens", "priority"):
            low, high = getattr(self, f"min_{subject}"), getattr(self, f"max_{subject}")
            if low is not None and high is not None and low > high:
                raise ValueError(f"min_{subject} ({low}) is above max_{subject} ({high})")
        return self
