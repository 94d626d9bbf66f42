"""What the network learns to predict: the violation fraction of the next step.

Shapes: C classes, T steps.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.features import violation_fraction
from models.window import Window


@dataclass(frozen=True, slots=True)
class Targets:
    """One target per class and step.

    Attributes:
        ratio: [C, T] violation fraction in the step, shrunk as in the features.
        mask: [C, T] False where the step says nothing of the class: it was not measured, or
            had no request. Learning the prior's value there would teach nothing.
    """

    ratio: NDArray[np.float64]
    mask: NDArray[np.bool_]


def violation_targets(history: Window) -> Targets:
    """The target of every step of a history."""
    seen = violation_fraction(history)
    return Targets(ratio=seen.ratio, mask=seen.known & (seen.requests > 0))
