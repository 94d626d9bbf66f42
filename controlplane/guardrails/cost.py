"""What weights are estimated to cost on the load of a window, without trying them.

Legend: C classes.

Kleinrock's mean waits in a queue with accumulating priority give how the classes share the
waiting; how much of it there is comes from what was measured. An estimate: arrivals are taken
as Poisson, waits as exponential, an engine that batches as a single server, and late requests
as served. It is used to compare two vectors of weights under one load, where these errors
weigh on both sides.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.guardrails.shares import Shares
from models.classes import TaskClass
from models.rule import mean_work_tokens
from models.window import Signal, Window, known

LEAST_LOAD, MOST_LOAD = 0.05, 0.95
"""Bounds of the load ratio: near 1 the estimate has a pole."""
WORST_LATENESS = 10.0
"""In SLOs: a request later than that is lost as a whole."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a window says of the load; all [C] unless said otherwise.

    Attributes:
        slo_s: time to first token.
        worth_ratio: part of the value that arrives; sums to 1, or all 0 when nothing arrives.
        load_ratio: utilisation by class; the sum is in [LEAST_LOAD, MOST_LOAD], or all 0.
        mean_wait_s: scalar, over all work; the same under all weights.
    """

    slo_s: Shares
    worth_ratio: Shares
    load_ratio: Shares
    mean_wait_s: float


def load_of(window: Window, task_classes: Sequence[TaskClass]) -> Load:
    """Read the load off a window; what is unknown counts as no traffic.

    The utilisation is the part of the steps in which anything waits: what an arrival finds is
    what there is on average (PASTA, Wolff 1982).
    """
    arrivals = _mean(window, Signal.ARRIVALS_PER_S)  # [C]
    work = arrivals * mean_work_tokens(window)  # [C]
    worth = arrivals * np.array([cls.value for cls in task_classes])  # [C]
    demand = _parts(work)  # [C]
    waiting = window.signals[Signal.WAITING]  # [C, T]
    busy = float((np.where(known(waiting), waiting, 0.0).sum(axis=0) > 0).mean())
    first_token_s = _mean(window, Signal.TTFT_MEAN_S)  # [C]
    wait_s = np.where(first_token_s > 0, first_token_s, _mean(window, Signal.OLDEST_WAIT_S))
    return Load(
        slo_s=np.array([cls.slo.ttft_s for cls in task_classes]),
        worth_ratio=_parts(worth),
        load_ratio=demand * np.clip(busy, LEAST_LOAD, MOST_LOAD),
        mean_wait_s=float((demand * wait_s).sum()),
    )


def estimated_cost(shares: Shares, load: Load) -> float:
    """Part of the arriving value that is lost, in [0, 1].

    Half for a wait over the SLO, half growing with the lateness up to `WORST_LATENESS` SLOs.
    With an exponential wait of mean W and the SLO d:

        P(wait > d) = exp(-d / W)
        E[min((wait - d)+, b)] = W exp(-d / W) (1 - exp(-b / W)),   b = (WORST_LATENESS - 1) d
    """
    wait_s = load.mean_wait_s * wait_ratios(shares / load.slo_s, load.load_ratio)  # [C]
    mean = np.maximum(wait_s, 1e-3 * load.slo_s)  # [C]; below it nothing is late
    most = (WORST_LATENESS - 1.0) * load.slo_s  # [C]
    miss = np.exp(-load.slo_s / mean)  # [C]
    lateness = mean / most * miss * -np.expm1(-most / mean)  # [C]
    return float((load.worth_ratio * (0.5 * miss + 0.5 * lateness)).sum())


def wait_ratios(slopes: Shares, load_ratio: Shares) -> Shares:
    """Mean wait of each class over the mean over all work: [C].

    Priority accumulates with slope b_k while a request waits. In the order of rising slopes

        W_p = (1 - sum_{i<p} rho_i W_i (1 - b_i / b_p)) / (1 - sum_{i>p} rho_i (1 - b_p / b_i))

    (Kleinrock 1964, "A delay dependent queue discipline", Naval Research Logistics Quarterly
    11, in units of W0 / (1 - rho)); ``sum(rho W) = sum(rho)`` whatever the slopes (his
    conservation law).

    Args:
        slopes: [C] > 0, on any scale.
        load_ratio: [C] rho_k; the sum is below 1.
    """
    waits = np.ones_like(slopes)
    order = np.argsort(slopes, kind="stable")
    for place, row in enumerate(order):
        lower, higher = order[:place], order[place + 1 :]
        saved = load_ratio[lower] * waits[lower] * (1.0 - slopes[lower] / slopes[row])
        yielded = load_ratio[higher] * (1.0 - slopes[row] / slopes[higher])
        waits[row] = (1.0 - saved.sum()) / (1.0 - yielded.sum())
    return waits


def _mean(window: Window, signal: Signal) -> Shares:
    """Mean over the known steps, 0 without any: [C]."""
    values = window.signals[signal]  # [C, T]
    measured = known(values)  # [C, T]
    total: Shares = np.where(measured, values, 0.0).sum(axis=1)
    mean: Shares = total / np.maximum(measured.sum(axis=1), 1)
    return mean


def _parts(amounts: Shares) -> Shares:
    """Amounts [C] as parts of their sum; all 0 when there is nothing."""
    total = amounts.sum()
    parts: Shares = amounts / total if total > 0 else np.zeros_like(amounts)
    return parts
