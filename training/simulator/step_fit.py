"""Fitting the time of an engine's step to measured steps.

    T = a + b prefill + c decoding + d kv + e chunk_context,    all coefficients >= 0

on the relative error, so that short decode steps count as much as long prefill steps. Two
ways, for the two things that may be at hand: the steps themselves (offline), or the sums
over them that an engine reports (online).

Shapes: N steps, K = 5 terms; the sums hold the first 4.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import nnls

from training.errors import NotEnoughSteps

Array = NDArray[np.float64]

FEWEST_STEPS = 30
_PASSES = 50
_CONVERGED = 1e-6
_HUBER = 1.345
"""In deviations: 95% efficient where the noise is normal."""
_DEVIATION_PER_MAD = 1.4826
_LEAST_DEVIATION = 1e-4
_MOST_NOISE = 0.1
_SUM_TERMS = 4


@dataclass(frozen=True, slots=True, eq=False)
class StepSamples:
    """Measured steps.

    Attributes:
        elapsed_s: [N], positive.
        loads: [N, K] what was computed: 1, prefill tokens, decoding sequences, KV tokens in
            use, and the sum over prompt chunks of their tokens times those before them.

    Raises:
        NotEnoughSteps: they are too few to say anything.
        ValueError: a time is not positive.
    """

    elapsed_s: Array
    loads: Array

    def __post_init__(self) -> None:
        """Refuse what can't be fitted."""
        if len(self.elapsed_s) < FEWEST_STEPS:
            raise NotEnoughSteps(
                f"{len(self.elapsed_s)} steps were measured, {FEWEST_STEPS} are needed"
            )
        if not (np.isfinite(self.elapsed_s).all() and (self.elapsed_s > 0).all()):
            raise ValueError("a step takes a positive time")

    def error_ratio(self, coefficients: Array) -> float:
        """Mean absolute error of predictions, as a ratio of the measured times (MAPE)."""
        return float(np.mean(np.abs(self.loads @ coefficients / self.elapsed_s - 1)))

    def slowness(self, coefficients: Array) -> float:
        """The time of all steps over the predicted one."""
        return float(self.elapsed_s.sum() / (self.loads @ coefficients).sum())


def fit_steps(samples: StepSamples) -> Array:
    """Coefficients [K] of the steps.

    Errors count relative to the *predicted* time, found by iteration: relative to the measured
    one, noise would pull predictions below the mean. Steps far off (a pause of the machine)
    count less, by Huber's weights on the deviations' own scale.

    P. J. Huber, "Robust estimation of a location parameter", Annals of Mathematical Statistics
    35 (1964); P. W. Holland and R. E. Welsch, "Robust regression using iteratively reweighted
    least-squares", Communications in Statistics A6 (1977).
    """
    loads, elapsed_s = samples.loads, samples.elapsed_s
    predicted_s, weight = elapsed_s, np.ones(len(elapsed_s))
    coefficients = np.zeros(loads.shape[1])
    for _ in range(_PASSES):
        before, coefficients = coefficients, _solve(loads, elapsed_s, np.sqrt(weight) / predicted_s)
        predicted_s = np.maximum(loads @ coefficients, elapsed_s.min() / 10)
        if np.allclose(before, coefficients, rtol=_CONVERGED, atol=0):
            break
        weight = _huber(elapsed_s / predicted_s - 1)
    return coefficients


def _solve(loads: Array, elapsed_s: Array, row_weight: Array) -> Array:
    scale = np.linalg.norm(loads * row_weight[:, None], axis=0)  # [K]
    scale[scale == 0] = 1.0  # no such load: the coefficient comes out as 0
    rows = np.column_stack((loads / scale, elapsed_s)) * row_weight[:, None]  # [N, K + 1]
    _, triangle = np.linalg.qr(rows)  # [K + 1, K + 1], the same least squares
    solution, _ = nnls(triangle[:, :-1], triangle[:, -1])
    return np.asarray(solution / scale, dtype=np.float64)


def _huber(errors: Array) -> Array:
    deviation = _DEVIATION_PER_MAD * np.median(np.abs(errors - np.median(errors)))
    bound = _HUBER * max(float(deviation), _LEAST_DEVIATION)
    return np.asarray(bound / np.maximum(np.abs(errors), bound), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class StepSums:
    """Sums over steps, as an engine reports them (weights.proto, ``StepTimeStats``).

    Attributes:
        steps: how many; a forgotten one counts in part.
        gram: [4, 4] sum of ``x x' / T^2``.
        moment: [4] sum of ``x / T``.
    """

    steps: float
    gram: Array
    moment: Array

    @classmethod
    def nothing(cls) -> "StepSums":
        """Over no steps."""
        return cls(0.0, np.zeros((_SUM_TERMS, _SUM_TERMS)), np.zeros(_SUM_TERMS))

    @classmethod
    def reported(
        cls, steps: int, gram_triangle: tuple[float, ...], moment: tuple[float, ...]
    ) -> "StepSums":
        """From the report's numbers. Args: gram_triangle: upper triangle by rows, 10 numbers.

        Raises:
            ValueError: there are more or fewer numbers, or one is not finite.
        """
        numbers = (len(gram_triangle), len(moment))
        if numbers != (10, _SUM_TERMS) or not np.isfinite(gram_triangle + moment).all():
            raise ValueError("a report holds 10 finite numbers in gram and 4 in moment")
        upper = np.zeros((_SUM_TERMS, _SUM_TERMS))
        upper[np.triu_indices(_SUM_TERMS)] = gram_triangle
        return cls(float(steps), upper + np.triu(upper, 1).T, np.array(moment, dtype=np.float64))

    def __add__(self, other: "StepSums") -> "StepSums":
        """Over the steps of both."""
        return StepSums(
            self.steps + other.steps, self.gram + other.gram, self.moment + other.moment
        )

    def __sub__(self, other: "StepSums") -> "StepSums":
        """Over the steps that ``other`` does not hold."""
        return self + other.times(-1.0)

    def times(self, factor: float) -> "StepSums":
        """Each step counts so often."""
        return StepSums(self.steps * factor, self.gram * factor, self.moment * factor)


def fit_sums(sums: StepSums, prior: Array, prior_steps: float) -> Array:
    """Coefficients [4] of the steps behind sums, starting from a calibration.

    First one factor on all of the prior's coefficients, which a handful of steps tell; then
    each by itself, as if ``prior_steps`` further steps had been measured that agree with the
    scaled prior. So what the steps can't tell apart keeps the prior's proportions.

    The sums weigh errors by the measured times, which noise makes too small: were it
    lognormal with variance s2 of the logarithm, the coefficients would come out
    ``exp(-2 s2)`` times too small and leave a mean squared residual of ``1 - exp(-s2)``. The
    residual is known, hence the correction.

    Args:
        sums: over at least one step.
        prior: [4], its step time positive.
        prior_steps: positive.
    """
    scaled = prior * (sums.moment @ prior) / (prior @ sums.gram @ prior)
    diagonal = np.diag(sums.gram)
    pull = np.where(diagonal > 0, diagonal * prior_steps / sums.steps, 1.0)  # [4]
    unit = np.sqrt(diagonal + pull)  # [4]
    curvature = (sums.gram + np.diag(pull)) / np.outer(unit, unit)
    lower = cholesky(curvature, lower=True)
    target = solve_triangular(lower, (sums.moment + pull * scaled) / unit, lower=True)
    solution, _ = nnls(lower.T, target)
    found = solution / unit
    left = sums.steps - 2 * found @ sums.moment + found @ sums.gram @ found
    noise = min(max(0.0, left / sums.steps), _MOST_NOISE)
    return np.asarray(found / (1 - noise) ** 2, dtype=np.float64)
