"""What a retraining is to get better at."""

from enum import StrEnum


class Objective(StrEnum):
    """Of the network's two outputs, which are learned."""

    REGRET = "regret"
    """What weights cost in the simulator, then the forecast of violations."""
    VIOLATION = "violation"
    """The forecast alone; the corrections to the rule stay as they are."""
