"""A window as the network sees it.

One tensor [C, T, F]: what was measured in each step, whether it was, and the class's
descriptor, which is the same in every step. Nothing in it is ever NaN: what is unknown gets a
defined value and a mask channel says so.

Shapes: C classes, T steps, F features.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from models.architecture import ARCHITECTURE
from models.classes import LatePolicy, TaskClass
from models.rule import RULE, mean_work_tokens, rule_shares
from models.window import STEP_S, STEPS, Signal, Window, known

MEASURED = (
    "log_ttft_to_slo",
    "violation_fraction",
    "demand_share",
    "log1p_oldest_wait_to_slo",
    "log1p_waiting",
    "ttft_known",
    "flows_known",
    "queue_known",
)
DESCRIPTOR = (
    "log_ttft_slo_s",
    "log_relative_value",
    "demotes_late",
    "rule_logit",
)
FEATURE_NAMES: tuple[str, ...] = MEASURED + DESCRIPTOR

_ENCODING = 1
"""Grows when a channel's formula changes while its name and the constants stay."""

_FLOWS = (
    Signal.ARRIVALS_PER_S,
    Signal.FINISHED_PER_S,
    Signal.VIOLATIONS_PER_S,
    Signal.PROMPT_TOKENS_PER_S,
    Signal.GENERATION_TOKENS_PER_S,
)
_QUEUE = (Signal.WAITING, Signal.WAITING_PAST_SLO, Signal.OLDEST_WAIT_S)


@dataclass(frozen=True, slots=True)
class Scaling:
    """Constants of the encoding.

    Attributes:
        prior_violation_ratio: violation fraction where nothing was seen.
        prior_requests: requests that this prior counts for.
        max_abs_log_ratio: bound of log(TTFT / SLO) and of the log descriptors.
        max_log_count: bound of log1p(waiting) and log1p(oldest wait / SLO).
        max_abs_logit: bound of the rule's log-odds; a lone class has share 1.
    """

    prior_violation_ratio: float = 0.05
    prior_requests: float = 2.0
    max_abs_log_ratio: float = 6.0
    max_log_count: float = 8.0
    max_abs_logit: float = 12.0


SCALING = Scaling()


@dataclass(frozen=True, slots=True)
class ViolationFraction:
    """Requests in violation among those that a step says something about.

    Attributes:
        ratio: [C, T] in [0, 1]; the prior where nothing was seen.
        requests: [C, T] how many the step says something about; 0 where unknown.
        known: [C, T] whether the step was measured.
    """

    ratio: NDArray[np.float64]
    requests: NDArray[np.float64]
    known: NDArray[np.bool_]


def violation_fraction(window: Window) -> ViolationFraction:
    """Fraction of requests that finished late, failed, or wait past their SLO.

    Those that wait count: a starved class finishes nothing and would look healthy. The mean of
    a Beta posterior, ``(bad + prior * n0) / (seen + n0)``, so that one late request of one is
    not a rate of 100%.
    """
    finished, violated, past_slo = (
        window.signals[signal]
        for signal in (
            Signal.FINISHED_PER_S,
            Signal.VIOLATIONS_PER_S,
            Signal.WAITING_PAST_SLO,
        )
    )  # each [C, T]
    measured = known(finished) & known(violated) & known(past_slo)  # [C, T]
    finished, violated, past_slo = (
        np.where(measured, values, 0.0) for values in (finished, violated, past_slo)
    )  # each [C, T]
    seen = finished * window.step_s + past_slo  # [C, T]
    bad = violated * window.step_s + past_slo  # [C, T]
    prior = SCALING.prior_requests
    ratio = (bad + prior * SCALING.prior_violation_ratio) / (seen + prior)  # [C, T]
    return ViolationFraction(ratio=np.minimum(ratio, 1.0), requests=seen, known=measured)


def encode(window: Window, classes: Sequence[TaskClass]) -> NDArray[np.float32]:
    """The network's input, [C, T, F], channels in the order of `FEATURE_NAMES`.

    Raises:
        ValueError: the window's grid is not that of training, or ``classes`` are not the
            window's, in its order.
    """
    if window.steps != STEPS or not math.isclose(window.step_s, STEP_S):
        raise ValueError(
            f"the network reads {STEPS} steps of {STEP_S} s, "
            f"the window has {window.steps} of {window.step_s} s"
        )
    shares = rule_shares(window, classes)  # [C]
    channels = _measured(window, classes) + _descriptors(classes, shares, window.steps)
    return np.stack(channels, axis=-1, dtype=np.float32)  # [C, T, F]


def schema_hash() -> str:
    """SHA-256 over everything that gives the numbers in the tensor and the network a meaning.

    Two processes with the same hash can exchange bundles; others must not.
    """
    schema = {
        "features": FEATURE_NAMES,
        "encoding": _ENCODING,
        "steps": STEPS,
        "step_s": STEP_S,
        "scaling": asdict(SCALING),
        "rule": asdict(RULE),
        "architecture": asdict(ARCHITECTURE),
    }
    return hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()


def _measured(window: Window, classes: Sequence[TaskClass]) -> list[NDArray[np.float64]]:
    """The channels named in `MEASURED`, each [C, T]."""
    slo_s = np.array([[task_class.slo.ttft_s] for task_class in classes])  # [C, 1]
    ttft_s = window.signals[Signal.TTFT_MEAN_S]  # [C, T]
    ttft_known = known(ttft_s) & (ttft_s > 0)  # [C, T]
    log_ttft = np.log(np.where(ttft_known, ttft_s, slo_s) / slo_s)  # unknown: as if at the SLO
    oldest_wait_s = _or_zero(window.signals[Signal.OLDEST_WAIT_S])  # [C, T]
    waiting = _or_zero(window.signals[Signal.WAITING])  # [C, T]
    return [
        np.clip(log_ttft, -SCALING.max_abs_log_ratio, SCALING.max_abs_log_ratio),
        violation_fraction(window).ratio,
        _demand_share(window),
        np.minimum(np.log1p(oldest_wait_s / slo_s), SCALING.max_log_count),
        np.minimum(np.log1p(waiting), SCALING.max_log_count),
        ttft_known.astype(np.float64),
        _all_known(window, _FLOWS),
        _all_known(window, _QUEUE),
    ]


def _descriptors(
    classes: Sequence[TaskClass], shares: NDArray[np.float64], steps: int
) -> list[NDArray[np.float64]]:
    """The channels named in `DESCRIPTOR`, each [C, T], the same in every step."""
    bound = SCALING.max_abs_log_ratio
    log_slo = np.log([task_class.slo.ttft_s for task_class in classes])  # [C]
    log_value = np.log([task_class.value for task_class in classes])  # [C]
    demotes = np.array([float(task_class.late is LatePolicy.DEMOTE) for task_class in classes])
    with np.errstate(divide="ignore"):  # a lone class has share 1, log-odds inf
        logit = np.log(shares) - np.log1p(-shares)  # [C]
    columns = (
        np.clip(log_slo, -bound, bound),
        np.clip(log_value - log_value.mean(), -bound, bound),  # only ratios of values matter
        demotes,
        np.clip(logit, -SCALING.max_abs_logit, SCALING.max_abs_logit),
    )
    return [np.broadcast_to(column[:, None], (len(classes), steps)) for column in columns]


def _demand_share(window: Window) -> NDArray[np.float64]:
    """Each class's part of the work that arrived in a step, [C, T]; 0 where none did."""
    arrivals_per_s = _or_zero(window.signals[Signal.ARRIVALS_PER_S])  # [C, T]
    demand = arrivals_per_s * mean_work_tokens(window)[:, None]  # [C, T]
    total = demand.sum(axis=0, keepdims=True)  # [1, T]
    share: NDArray[np.float64] = demand / np.where(total > 0, total, 1.0)
    return share


def _or_zero(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Zero where unknown; a mask channel says which zeroes are none."""
    return np.where(known(values), values, 0.0)


def _all_known(window: Window, signals: Sequence[Signal]) -> NDArray[np.float64]:
    """1.0 in the steps in which all the signals were measured, [C, T]."""
    masks = [known(window.signals[signal]) for signal in signals]
    measured: NDArray[np.float64] = np.logical_and.reduce(masks).astype(np.float64)
    return measured
