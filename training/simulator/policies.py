"""Policies by name: a discipline and the weights that go with it.

Shapes: C classes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from models.classes import TaskClass
from training.simulator.model import Discipline

Shares = NDArray[np.float64]


def uniform_shares(classes: Sequence[TaskClass]) -> Shares:
    """[C] the same for all."""
    return np.full(len(classes), 1 / len(classes))


def value_shares(classes: Sequence[TaskClass]) -> Shares:
    """[C] in proportion to the classes' values."""
    value = np.array([kind.value for kind in classes])
    return np.asarray(value / value.sum(), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Policy:
    """How engines choose who goes next.

    Attributes:
        shares: [C] weights, summing to 1, from the classes.
    """

    discipline: Discipline
    shares: Callable[[Sequence[TaskClass]], Shares]


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "fcfs": Policy(Discipline.FCFS, uniform_shares),
        "apq": Policy(Discipline.APQ, value_shares),
        "apq-uniform": Policy(Discipline.APQ, uniform_shares),
        "gcmu": Policy(Discipline.GCMU, value_shares),
        "wfq": Policy(Discipline.WFQ, value_shares),
        "edf": Policy(Discipline.EDF, value_shares),
        "strict": Policy(Discipline.STRICT, value_shares),
        "cp-score": Policy(Discipline.CP_SCORE, value_shares),
    }
)
"""Static ones: the weights stay as they are."""
