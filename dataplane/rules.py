"""Rules that give a class to requests that name none."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestTraits:
    """What rules look at.

    Attributes:
        max_tokens: the most tokens that may be generated; None: as many as fit.
        priority: as the API takes it; small is urgent there.
    """

    prompt_tokens: int
    max_tokens: int | None = None
    lora: str | None = None
    priority: int = 0
    tenant: str | None = None
    streaming: bool = False


@dataclass(frozen=True, slots=True)
class ClassRule:
    """All conditions that are given must hold. None: no condition; bounds are inclusive."""

    task_class: str
    min_prompt_tokens: int | None = None
    max_prompt_tokens: int | None = None
    min_max_tokens: int | None = None
    max_max_tokens: int | None = None
    lora: str | None = None
    min_priority: int | None = None
    max_priority: int | None = None
    tenant: str | None = None
    streaming: bool | None = None

    def matches(self, traits: RequestTraits) -> bool:
        """Whether a request like this is meant."""
        return (
            _within(traits.prompt_tokens, self.min_prompt_tokens, self.max_prompt_tokens)
            and _within(traits.max_tokens, self.min_max_tokens, self.max_max_tokens)
            and _within(traits.priority, self.min_priority, self.max_priority)
            and self.lora in (None, traits.lora)
            and self.tenant in (None, traits.tenant)
            and self.streaming in (None, traits.streaming)
        )


BUILT_IN_RULES = (
    ClassRule("short", max_prompt_tokens=127),
    ClassRule("long", min_prompt_tokens=8001),
    ClassRule("streaming", streaming=True),
    ClassRule("batch"),
)
"""For a snapshot without rules: those whose class it names. Before the first snapshot: all."""


def _within(number: int | None, low: int | None, high: int | None) -> bool:
    """An unknown number is above every bound: "as many as fit" is the most there is."""
    if number is None:
        return high is None
    return (low is None or number >= low) and (high is None or number <= high)
