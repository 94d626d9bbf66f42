"""A network as the control plane serves it: whenever it fails, the rule plays.

Shapes: C classes.
"""

from collections.abc import Sequence

from models.bundle import Bundle
from models.classes import TaskClass
from models.errors import ModelError
from models.rule import rule_shares
from models.window import Window
from training.closed_loop.controller import Shares

_NUMBERS = 3
"""That a network gives for a class: weight, residual, violation."""


class Served:
    """A bundle in the place of a champion.

    Attributes:
        outputs: numbers that it gave so far, or should have.
        not_finite: how many of them were of no use.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.outputs = 0
        self.not_finite = 0
        self._bundle = bundle

    def weights(self, window: Window, classes: Sequence[TaskClass], _tick: int) -> Shares:
        """What the bundle predicts, or the rule: [C]."""
        numbers = _NUMBERS * len(classes)
        self.outputs += numbers
        try:
            return self._bundle.predict(window, classes).weights
        except ModelError:
            self.not_finite += numbers
            return rule_shares(window, classes)
