"""What is minimised: the value-weighted SLO loss. The one definition of it.

A request loses nothing while it meets every objective of its class. Otherwise, r being the
largest ratio of what was measured to what was promised,

    loss = 1/2 + 1/2 * min(1, (r - 1) / (10 - 1)),        r > 1,

half for the miss and half for how late it is, all of it from ten times the objective on. What
was rejected, ended in an error or was never served is wholly lost. Of what is not over yet, the
time since its arrival is the least that its TTFT and e2e can become, and is taken for them:
who waits past the SLO counts before it is served. Over requests i of classes k(i), with values v,

    mean    = sum_i v_k(i) loss_i / sum_i v_k(i)
    worst   = max_k (mean loss of the requests of class k)
    total   = mean + WORST_CLASS * worst,                 in [0, 1 + WORST_CLASS].

The worst class's term keeps a class of little value from being given up for the others.

Shapes: N requests, C classes. NaN: not yet, or not defined for the request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.classes import TaskClass

Float = NDArray[np.float64]

MISS = 0.5
"""What a request loses that is the least bit late."""
HOPELESS_RATIO = 10.0
"""From this multiple of an objective on, all is lost."""
WORST_CLASS = 0.2
"""Weight of the worst class's mean loss beside the value-weighted mean of all."""


@dataclass(frozen=True, slots=True, eq=False)
class Fates:
    """What is known of each request at one moment. Arrays [N].

    Attributes:
        class_index: into the classes.
        age_s: since its arrival; also of those that are over.
        ttft_s: NaN: no token yet.
        tpot_s: mean time per token after the first; NaN: there is none, or not yet.
        e2e_s: NaN: it is not over.
        lost: rejected, ended in an error, or never served.

    Raises:
        ValueError: the arrays are of unequal length.
    """

    class_index: NDArray[np.integer[Any]]
    age_s: Float
    ttft_s: Float
    tpot_s: Float
    e2e_s: Float
    lost: NDArray[np.bool_]

    def __post_init__(self) -> None:
        """Refuse columns that do not belong together."""
        shapes = {getattr(self, field.name).shape for field in fields(self)}
        if len(shapes) != 1 or len(next(iter(shapes))) != 1:
            raise ValueError(f"all columns must be [N], got {sorted(shapes)}")


@dataclass(frozen=True, slots=True, eq=False)
class SloLoss:
    """The loss of some requests; all 0 where there are none.

    Attributes:
        total: what is minimised.
        mean: value-weighted, in [0, 1].
        worst: of the class with the largest mean loss, in [0, 1].
        by_class: [C] mean loss; NaN for a class without a request.
    """

    total: float
    mean: float
    worst: float
    by_class: Float


def lateness_ratio(fates: Fates, classes: Sequence[TaskClass]) -> Float:
    """Measured over promised, of the objective that is missed most: [N], at least 0."""
    ttft_s = np.where(np.isnan(fates.ttft_s), fates.age_s, fates.ttft_s)  # [N]
    e2e_s = np.where(np.isnan(fates.e2e_s), fates.age_s, fates.e2e_s)  # [N]
    ratios = (
        ttft_s / _limits([one.slo.ttft_s for one in classes])[fates.class_index],
        e2e_s / _limits([one.slo.e2e_s for one in classes])[fates.class_index],
        fates.tpot_s / _limits([one.slo.tpot_s for one in classes])[fates.class_index],
    )
    ratio: Float = np.fmax.reduce(ratios)  # [N]; fmax passes over the NaN of no pace
    return ratio


def request_losses(fates: Fates, classes: Sequence[TaskClass]) -> Float:
    """What each request loses: [N] in [0, 1]."""
    ratio = lateness_ratio(fates, classes)  # [N]
    lateness = np.minimum((ratio - 1.0) / (HOPELESS_RATIO - 1.0), 1.0)  # [N]
    late = np.where(ratio > 1.0, MISS + (1.0 - MISS) * lateness, 0.0)  # [N]
    losses: Float = np.where(fates.lost, 1.0, late)
    return losses


def slo_loss(fates: Fates, classes: Sequence[TaskClass]) -> SloLoss:
    """The loss of these requests together."""
    count = np.bincount(fates.class_index, minlength=len(classes))  # [C]
    lost = np.bincount(  # [C]
        fates.class_index, weights=request_losses(fates, classes), minlength=len(classes)
    )
    return loss_of_sums(lost.astype(np.float64), count.astype(np.float64), classes)


def loss_of_sums(lost: Float, count: Float, classes: Sequence[TaskClass]) -> SloLoss:
    """The loss, from each class's losses added up and the number of its requests.

    Args:
        lost: [C] sum of the losses.
        count: [C] requests.
        classes: the C classes.
    """
    value = np.array([one.value for one in classes])  # [C]
    asked = count > 0  # [C]
    by_class = np.where(asked, lost / np.where(asked, count, 1.0), np.nan)  # [C]
    worth = float(value @ count)
    mean = float(value @ lost) / worth if worth > 0 else 0.0
    worst = float(by_class[asked].max(initial=0.0))
    return SloLoss(total=mean + WORST_CLASS * worst, mean=mean, worst=worst, by_class=by_class)


def _limits(objectives_s: Sequence[float | None]) -> Float:
    """[C]; what is no objective is missed by nothing."""
    return np.array([np.inf if one is None else one for one in objectives_s])
