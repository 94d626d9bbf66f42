"""How long an engine step takes: a linear model, learned from the steps themselves.

A step that computes p prompt tokens while d sequences decode over k KV tokens takes
``T = a + b p + c d + e k`` seconds. The model minimises the relative error

    sum over steps of (1 - (x . theta) / T)^2,  x = (1, p, d, k),  theta = (a, b, c, e) >= 0

so short decode steps count as much as long prefill steps. A step that took far longer than
the model says (a compilation, a pause) pulls with ``(1 - 1/r) / r`` at r times the predicted
time: nearly nothing for a large r. Steps that seem too short would pull with ``1 / r^2``, so
one counts as no shorter than ``SHORTEST_RATIO`` of its prediction: a stray one does little,
and an engine that did become faster is still followed, by that factor per half-life.
"""

import math
from dataclasses import astuple, dataclass
from itertools import product
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dataplane.state import StepTimeSums

Array = NDArray[np.float64]

HALF_LIFE_STEPS = 1000
FEWEST_STEPS = 30
"""A model of four coefficients from fewer steps than this would be guesswork."""

SHORTEST_S = 1e-4
"""No engine step is shorter; what claims to be is a mistake of the measurement."""

SHORTEST_RATIO = 0.5

RIDGE_RATIO = 1e-5
"""Of a coefficient's own curvature. Where the steps cannot tell coefficients apart (they
were all alike), it divides the time among them evenly; the predicted sum stays right."""

_FOLD_AT_ROWS = 256
_TRIANGLE = np.triu_indices(4)
# [15, 4], every set of coefficients that may be above zero. The largest come first and win
# where gains are equal but for rounding: what was last seen long ago weighs next to nothing
# in the gain, but what it costs is still known.
_SUPPORTS = np.array(sorted(product((0.0, 1.0), repeat=4), key=sum, reverse=True)[:-1])
_ROUNDING = 1e-12
_FORGOTTEN = 1e-100


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """The time of a step, in seconds.

    Raises:
        ValueError: a coefficient is negative or not finite.
    """

    base_s: float
    prefill_s_per_token: float
    decode_s_per_sequence: float
    kv_s_per_token: float

    def __post_init__(self) -> None:
        """Refuse what would make more work take less time."""
        for coefficient in astuple(self):
            if not (math.isfinite(coefficient) and coefficient >= 0):
                raise ValueError(f"a coefficient must be non-negative, got {self}")

    @classmethod
    def fitted(cls, gram: Array, moment: Array) -> Self:
        """The non-negative least squares solution.

        Minimises ``theta' G theta - 2 m' theta`` over theta >= 0 by trying every set of
        coefficients that may be above zero; the right one is among them.

        Args:
            gram: [4, 4], sum of ``x x' / T^2``.
            moment: [4], sum of ``x / T``.
        """
        scale = np.sqrt(np.diag(gram))
        scale[scale < _FORGOTTEN] = np.inf  # no curvature, no pull: the coefficient is 0
        curvature = gram / scale / scale[:, None] + RIDGE_RATIO * np.eye(4)
        pull = moment / scale
        systems = curvature * _SUPPORTS[:, :, None] * _SUPPORTS[:, None, :]  # [15, 4, 4]
        systems += np.eye(4) * (1 - _SUPPORTS)[:, :, None]
        solutions = np.linalg.solve(systems, (pull * _SUPPORTS)[:, :, None])[:, :, 0]  # [15, 4]
        gains = np.where(solutions.min(axis=1) >= 0, solutions @ pull, -np.inf)
        best = solutions[np.argmax(gains >= gains.max() * (1 - _ROUNDING))]
        return cls(*(best / scale).tolist())

    def time_s(self, prefill_tokens: int, decoding: int, kv_tokens: int) -> float:
        """What a step with this load takes."""
        return (
            self.base_s
            + self.prefill_s_per_token * prefill_tokens
            + self.decode_s_per_sequence * decoding
            + self.kv_s_per_token * kv_tokens
        )

    def prefill_tokens_within(
        self, time_s: float, decoding: int, kv_tokens: int, most_tokens: int
    ) -> int:
        """The most prompt tokens, up to ``most_tokens``, whose step takes at most ``time_s``.

        0 also when not even a step without any fits.
        """
        spare_s = time_s - self.time_s(0, decoding, kv_tokens)
        if spare_s <= 0:
            return 0
        if self.prefill_s_per_token * most_tokens <= spare_s:
            return most_tokens
        return int(spare_s / self.prefill_s_per_token)


class StepTimeStats:
    """Sums over the steps of one engine, and the model that they give.

    Steps are collected as rows and folded into the sums a few hundred at a time: per step
    that is a tuple in a list. Two sums are kept, of equal shape [5, 5] over
    ``z = (x / T, 1)``: one over all steps, for the report, and one in which a step counts
    half as much after ``half_life_steps`` further ones, for the model.

    All calls come from the scheduler's thread.
    """

    def __init__(self, half_life_steps: int = HALF_LIFE_STEPS) -> None:
        self._half_life_steps = half_life_steps
        self._rows: list[tuple[float, int, int, int, int]] = []
        self._elapsed_s = 0.0
        self._total = np.zeros((5, 5))
        self._recent = np.zeros((5, 5))
        self._model: StepTimeModel | None = None

    def add(self, prefill_tokens: int, decoding: int, kv_tokens: int, elapsed_s: float) -> None:
        """Count a step. One that did nothing or took no possible time is ignored."""
        if SHORTEST_S <= elapsed_s < math.inf and prefill_tokens + decoding > 0:
            self._rows.append((elapsed_s, 1, prefill_tokens, decoding, kv_tokens))
            if len(self._rows) >= _FOLD_AT_ROWS:
                self._fold()

    def fit(self) -> StepTimeModel | None:
        """The model of the recent steps; None before there are enough of them."""
        self._fold()
        if self._total[4, 4] >= FEWEST_STEPS:
            self._model = StepTimeModel.fitted(self._recent[:4, :4], self._recent[:4, 4])
        return self._model

    def sums(self) -> StepTimeSums | None:
        """The sums over all steps; None before the first."""
        self._fold()
        if not self._elapsed_s:
            return None
        return StepTimeSums(
            steps=round(self._total[4, 4]),
            elapsed_s=self._elapsed_s,
            gram=tuple(self._total[:4, :4][_TRIANGLE].tolist()),
            moment=tuple(self._total[:4, 4].tolist()),
        )

    def _fold(self) -> None:
        if not self._rows:
            return
        rows = np.array(self._rows, dtype=np.float64)  # [N, 5]: T, x
        self._rows.clear()
        elapsed_s, loads = rows[:, 0], rows[:, 1:]
        self._elapsed_s += float(elapsed_s.sum())
        if self._model is not None:
            predicted_s = loads @ np.array(astuple(self._model))
            elapsed_s = np.maximum(elapsed_s, SHORTEST_RATIO * predicted_s)
        steps = len(rows)
        z = np.column_stack((loads / elapsed_s[:, None], np.ones(steps)))  # [N, 5]
        weights = np.exp2((np.arange(steps) - (steps - 1)) / self._half_life_steps)  # [N]
        self._total += z.T @ z
        self._recent *= np.exp2(-steps / self._half_life_steps)
        self._recent += (z.T * weights) @ z
