"""What an engine is asked to do: requests by time of arrival.

Shapes: N requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from models.classes import TaskClass

Seconds = NDArray[np.float64]
Tokens = NDArray[np.int32]
Whole = NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Requests in the order of their arrival.

    Attributes:
        arrival_s: [N] from the workload's start, ascending.
        class_index: [N] into ``classes``.
        prompt_tokens: [N] at least 1.
        output_tokens: [N] generated until the request is complete, at least 1.

    Raises:
        ValueError: the arrays are of unequal length, or hold what no request can have.
    """

    arrival_s: Seconds
    class_index: Tokens
    prompt_tokens: Tokens
    output_tokens: Tokens
    classes: tuple[TaskClass, ...]

    def __post_init__(self) -> None:
        """Refuse what no engine could be asked."""
        for name, kind in _KINDS.items():
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), kind))
        shapes = {getattr(self, name).shape for name in _KINDS}
        if shapes != {(len(self.arrival_s),)}:
            raise ValueError(f"all arrays must be [N], got {sorted(shapes)}")
        gaps_s = np.diff(self.arrival_s, prepend=0.0)
        if not (np.isfinite(self.arrival_s).all() and (gaps_s >= 0).all()):
            raise ValueError("arrival_s must be finite, ascending and not before 0")
        if (self.class_index < 0).any() or (self.class_index >= len(self.classes)).any():
            raise ValueError(f"class_index must name one of {len(self.classes)} classes")
        for name in ("prompt_tokens", "output_tokens"):
            if (getattr(self, name) < 1).any():
                raise ValueError(f"{name} must be at least 1")

    @classmethod
    def in_order(
        cls,
        arrival_s: Seconds,
        class_index: Whole,
        prompt_tokens: Whole,
        output_tokens: Whole,
        classes: Sequence[TaskClass],
    ) -> Self:
        """Sorts by arrival; those that arrive together keep their order."""
        order = np.argsort(arrival_s, kind="stable")  # [N]
        return cls(
            arrival_s=arrival_s[order],
            class_index=class_index[order].astype(np.int32),
            prompt_tokens=prompt_tokens[order].astype(np.int32),
            output_tokens=output_tokens[order].astype(np.int32),
            classes=tuple(classes),
        )

    def __len__(self) -> int:
        """Number of requests N."""
        return len(self.arrival_s)

    @property
    def total_tokens(self) -> int:
        """Prompt and output tokens of all requests."""
        return int(self.prompt_tokens.sum(dtype=np.int64) + self.output_tokens.sum(dtype=np.int64))

    def between(self, start_s: float, stop_s: float) -> Self:
        """The requests of a stretch of time, which then begins at 0."""
        first, stop = np.searchsorted(self.arrival_s, (start_s, stop_s))
        part = slice(first, stop)
        return type(self)(
            self.arrival_s[part] - start_s,
            self.class_index[part],
            self.prompt_tokens[part],
            self.output_tokens[part],
            self.classes,
        )


_KINDS = {
    "arrival_s": np.float64,
    "class_index": np.int32,
    "prompt_tokens": np.int32,
    "output_tokens": np.int32,
}
