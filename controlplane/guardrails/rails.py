"""The names of what may change a wanted weight."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Mask: TypeAlias = NDArray[np.bool_]


class Guardrail(StrEnum):
    """What changed a wanted weight, in the order in which they act."""

    FINITE = "finite"
    """It was no positive finite number: the class keeps its previous share."""
    STALE = "stale"
    """Nothing of the class was measured lately: it keeps its previous share."""
    UNFAMILIAR = "unfamiliar"
    """The window is unlike what the model learned from: its say is reduced."""
    STEP = "step"
    """Its log-share would have moved too far in one tick."""
    MUTATION = "mutation"
    """Its log-share moved further than a step, because the traffic jumped."""
    HYSTERESIS = "hysteresis"
    """All shares were nearly right: they stay."""
    FLOOR = "floor"
    """It would have fallen below the class's floor."""
    BUDGET = "budget"
    """The model is estimated to have cost too much: the rule plays."""


Fired: TypeAlias = tuple[tuple[Guardrail, ...], ...]
"""Per class, what fired."""


def fired(conditions: Mapping[Guardrail, Mask]) -> Fired:
    """Per class, the guardrails whose condition [C] holds, in the order of `Guardrail`."""
    ordered = [rail for rail in Guardrail if rail in conditions]
    rows = zip(*(conditions[rail] for rail in ordered), strict=True)
    return tuple(
        tuple(rail for rail, holds in zip(ordered, row, strict=True) if holds) for row in rows
    )
