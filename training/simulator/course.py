"""A quantity that changes over time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

_CYCLE_KNOTS = 48
_AT_ONCE_S = 1e-6


@dataclass(frozen=True, slots=True)
class Course:
    """Piecewise linear between its knots, flat outside of them.

    Attributes:
        at_s: when each knot is, ascending.
        value: what the quantity is there, not negative.

    Raises:
        ValueError: the knots are none, unordered or of unequal number, or a value is negative.
    """

    at_s: tuple[float, ...]
    value: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse what is no course."""
        if not self.at_s or len(self.at_s) != len(self.value):
            raise ValueError(f"{len(self.at_s)} times need as many values, got {len(self.value)}")
        if list(self.at_s) != sorted(set(self.at_s)):
            raise ValueError(f"the times of a course must ascend, got {self.at_s}")
        if not all(math.isfinite(value) and value >= 0 for value in self.value):
            raise ValueError(f"the values of a course must not be negative, got {self.value}")

    @classmethod
    def flat(cls, value: float = 1.0) -> Self:
        """Always the same."""
        return cls((0.0,), (value,))

    @classmethod
    def change(cls, start_s: float, ramp_s: float, before: float, after: float) -> Self:
        """From one level to another, over ``ramp_s``; 0: at once."""
        return cls((start_s, start_s + max(ramp_s, _AT_ONCE_S)), (before, after))

    @classmethod
    def pulse(
        cls, start_s: float, stop_s: float, height: float, *, rise_s: float, fall_s: float
    ) -> Self:
        """1, then ``height`` from ``start_s`` to ``stop_s``, then 1 again."""
        top_s = start_s + max(rise_s, _AT_ONCE_S)
        return cls(
            (start_s, top_s, max(stop_s, top_s + _AT_ONCE_S), stop_s + max(fall_s, _AT_ONCE_S)),
            (1.0, height, height, 1.0),
        )

    @classmethod
    def cycle(cls, period_s: float, duration_s: float, depth: float, phase: float) -> Self:
        """``1 + depth * sin`` for ``duration_s``. Args: phase: of a period, in [0, 1)."""
        knots = max(2, math.ceil(_CYCLE_KNOTS * duration_s / period_s))
        at_s = np.linspace(0.0, duration_s, knots)
        value = 1 + depth * np.sin(2 * np.pi * (at_s / period_s + phase))
        return cls(tuple(at_s.tolist()), tuple(value.tolist()))

    @property
    def peak(self) -> float:
        """The largest value."""
        return max(self.value)

    def at(self, when_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """The values at these times, in the same shape."""
        return np.asarray(np.interp(when_s, self.at_s, self.value), dtype=np.float64)

    def levels(self, duration_s: float, piece_s: float) -> Sequence[tuple[float, float]]:
        """Piecewise constant: (until_s, value in the middle of the piece), equal ones joined."""
        edges_s = np.minimum(
            np.arange(1, math.ceil(duration_s / piece_s) + 1) * piece_s, duration_s
        )
        starts_s = np.concatenate(([0.0], edges_s[:-1]))
        values = self.at((starts_s + edges_s) / 2)
        ends = np.flatnonzero(np.append(np.diff(values) != 0, True))
        return [(float(edges_s[end]), float(values[end])) for end in ends]
