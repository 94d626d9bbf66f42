"""Who decides the weights: the champion, the rule, or nobody.

Shapes: C classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from models.bundle import Bundle
from models.classes import TaskClass
from models.rule import rule_shares
from models.window import Window

Shares: TypeAlias = NDArray[np.float64]

Guard: TypeAlias = Callable[[Shares, Shares], Shares]
"""Makes shares in force out of the weights wanted and the shares before: each [C]."""


class Controller(Protocol):
    """Wants weights at each tick."""

    def weights(self, window: Window, classes: Sequence[TaskClass], tick: int) -> Shares:
        """[C] all > 0; only ratios matter. Args: window: of the steps before the tick."""
        ...


class RuleController:
    """The rule on the current window."""

    def weights(self, window: Window, classes: Sequence[TaskClass], _tick: int) -> Shares:
        """The rule's shares."""
        return rule_shares(window, classes)


@dataclass(frozen=True, slots=True)
class BundleController:
    """A network, as the control plane serves it."""

    bundle: Bundle

    def weights(self, window: Window, classes: Sequence[TaskClass], _tick: int) -> Shares:
        """What the bundle predicts."""
        return self.bundle.predict(window, classes).weights


@dataclass(frozen=True, slots=True, eq=False)
class StaticController:
    """The same weights always. Attributes: constant: [C]."""

    constant: Shares

    def weights(self, _window: Window, _classes: Sequence[TaskClass], _tick: int) -> Shares:
        """The constant."""
        return self.constant


def unguarded(wanted: Shares, _previous: Shares) -> Shares:
    """What is wanted, as shares."""
    shares: Shares = wanted / wanted.sum()
    return shares
