"""How long prompts and answers are: distributions of tokens, not only means.

Shapes: N requests.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from training.simulator.workload import Tokens

LONGEST_TOKENS = 1_000_000
"""No engine takes a longer prompt."""

Draws = NDArray[np.float64]


class Lengths(Protocol):
    """A distribution of the tokens of a prompt or of an answer."""

    @property
    def mean_tokens(self) -> float:
        """Of the distribution, before rounding and bounds."""

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """[count] lengths, not yet rounded; `whole_tokens` rounds."""


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length from ``least`` to ``most`` equally often.

    Raises:
        ValueError: the bounds are not 1 <= least <= most.
    """

    least: int
    most: int

    def __post_init__(self) -> None:
        """Refuse what is no range of lengths."""
        if not 1 <= self.least <= self.most:
            raise ValueError(f"lengths need 1 <= least <= most, got {self.least} to {self.most}")

    @property
    def mean_tokens(self) -> float:
        """Halfway."""
        return (self.least + self.most) / 2

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """[count] whole numbers."""
        return rng.integers(self.least, self.most, count, endpoint=True).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Many short ones and a long tail, as lengths in production are.

    Attributes:
        mean_tokens: of the lengths themselves, not of their logarithms.
        cv: coefficient of variation, standard deviation by mean; 0: all alike.
        most_tokens: longer draws count as this.

    Raises:
        ValueError: a number is outside its range.
    """

    mean_tokens: float
    cv: float
    most_tokens: int = LONGEST_TOKENS

    def __post_init__(self) -> None:
        """Refuse what is no distribution of lengths."""
        if not (math.isfinite(self.mean_tokens) and self.mean_tokens > 0):
            raise ValueError(f"mean_tokens must be positive, got {self.mean_tokens}")
        if not (math.isfinite(self.cv) and self.cv >= 0):
            raise ValueError(f"cv must not be negative, got {self.cv}")
        if self.most_tokens < 1:
            raise ValueError(f"most_tokens must be at least 1, got {self.most_tokens}")

    @classmethod
    def from_moments(cls, mean_tokens: float, mean_square: float) -> Self:
        """The one with this mean and this mean of squares; a smaller square counts as no spread."""
        return cls(mean_tokens, math.sqrt(max(0.0, mean_square / mean_tokens**2 - 1)))

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """[count]; ``sigma^2 = log(1 + cv^2)`` and ``mu = log(mean) - sigma^2 / 2``."""
        variance = math.log1p(self.cv**2)
        log_mean = math.log(self.mean_tokens) - variance / 2
        draws = np.exp(log_mean + math.sqrt(variance) * rng.standard_normal(count))
        return np.asarray(np.minimum(draws, self.most_tokens), dtype=np.float64)


class RequestLengths(Protocol):
    """A joint distribution of a request's prompt and its answer."""

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Of the prompt, and of the answer."""

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Draws, Draws]:
        """[count] prompts and [count] answers."""


@dataclass(frozen=True, slots=True)
class Independent:
    """The answer's length says nothing of the prompt's."""

    prompt: Lengths
    output: Lengths

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Of the prompt, and of the answer."""
        return self.prompt.mean_tokens, self.output.mean_tokens

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Draws, Draws]:
        """[count] prompts and [count] answers."""
        return self.prompt.draw(rng, count), self.output.draw(rng, count)


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """Requests that were seen, each as likely as any other; pairs stay together.

    Attributes:
        prompt_tokens: [N].
        output_tokens: [N], of the same requests.

    Raises:
        ValueError: there is none, or the arrays are of unequal length.
    """

    prompt_tokens: Tokens
    output_tokens: Tokens

    def __post_init__(self) -> None:
        """Refuse what is no list of pairs."""
        if not len(self.prompt_tokens) or len(self.prompt_tokens) != len(self.output_tokens):
            raise ValueError(
                f"pairs of lengths are needed, got {len(self.prompt_tokens)} prompts "
                f"and {len(self.output_tokens)} answers"
            )

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Of the prompt, and of the answer."""
        return float(self.prompt_tokens.mean()), float(self.output_tokens.mean())

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Draws, Draws]:
        """[count] pairs, with replacement (the bootstrap)."""
        rows = rng.integers(len(self.prompt_tokens), size=count)
        return (
            self.prompt_tokens[rows].astype(np.float64),
            self.output_tokens[rows].astype(np.float64),
        )


def whole_tokens(draws: NDArray[np.floating[Any]]) -> Tokens:
    """Rounded to tokens, at least one."""
    whole: Tokens = np.clip(np.rint(draws), 1, LONGEST_TOKENS).astype(np.int32)
    return whole
