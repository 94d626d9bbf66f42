"""What the weights should be, before the guardrails.

The champion when there is one, the rule when there is none or it fails.

Legend: C classes, F features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import structlog

from controlplane.snapshot import Mode
from models.errors import ModelError
from models.features import FEATURE_NAMES, encode
from models.rule import rule_shares

if TYPE_CHECKING:  # importing a bundle imports torch; the first snapshot can't wait for that
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from models.bundle import Bundle
    from models.classes import TaskClass
    from models.window import Window

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Champion:
    """A loaded model version."""

    version: str
    bundle: Bundle


@dataclass(frozen=True, slots=True)
class Forecast:
    """Wanted weights and what led to them.

    Attributes:
        mode: LEARNED or RULE.
        wanted: [C] on any scale.
        rule_shares: [C].
        residuals: [C] in log-odds; None under the rule.
        features: [C, F] at the window's last step.
        unfamiliarity: [C] of the window to the model; 0 under the rule.
        violation: [C] expected in the next step; None: nothing is.
        model_version: None under the rule.
        window: that it is made from.
    """

    mode: Mode
    reason: str
    wanted: NDArray[np.float64]
    rule_shares: NDArray[np.float64]
    residuals: NDArray[np.float64] | None
    features: NDArray[np.float64]
    feature_names: tuple[str, ...]
    unfamiliarity: NDArray[np.float64]
    violation: NDArray[np.float64] | None
    model_version: str | None
    window: Window

    def yielding(self, reason: str) -> Forecast:
        """The same window under the rule; unchanged when that steers already."""
        if self.mode is Mode.RULE:
            return self
        return replace(
            self,
            mode=Mode.RULE,
            reason=reason,
            wanted=self.rule_shares,
            residuals=None,
            unfamiliarity=np.zeros_like(self.unfamiliarity),
            violation=None,
            model_version=None,
        )


class Forecaster:
    """Holds the serving champion, or a guest that plays some of the time.

    `swap` and `forecast` may be called from any thread: a forecast reads the
    reference once and stays with what it read.

    Args:
        role: what the version is called in reasons.
    """

    def __init__(self, task_classes: Sequence[TaskClass], role: str = "champion") -> None:
        self._task_classes = tuple(task_classes)
        self._role = role
        self._serving: Champion | str = f"no {role} is loaded yet"

    @property
    def serving_version(self) -> str | None:
        """Version of the champion; None: there is none."""
        serving = self._serving
        return serving.version if isinstance(serving, Champion) else None

    def swap(self, serving: Champion | str) -> None:
        """From the next forecast on, serve a champion, or the rule for the reason given."""
        self._serving = serving

    def forecast(self, window: Window) -> Forecast:
        """Weights for the next tick; takes milliseconds."""
        serving = self._serving
        if isinstance(serving, str):
            return self._by_rule(window, serving)
        try:
            return self._by_champion(window, serving)
        except (ModelError, ValueError, RuntimeError) as error:
            log.warning(
                "a model failed", role=self._role, version=serving.version, error=str(error)
            )
            return self._by_rule(window, f"{self._role} {serving.version} failed: {error}")

    def _by_champion(self, window: Window, champion: Champion) -> Forecast:
        prediction = champion.bundle.predict(window, self._task_classes)
        return Forecast(
            mode=Mode.LEARNED,
            reason=f"{self._role} {champion.version}",
            wanted=prediction.weights,
            rule_shares=prediction.rule_shares,
            residuals=prediction.residuals,
            features=prediction.features.astype(np.float64),
            feature_names=prediction.feature_names,
            unfamiliarity=prediction.unfamiliarity,
            violation=prediction.violation if champion.bundle.provenance.trained else None,
            model_version=champion.version,
            window=window,
        )

    def _by_rule(self, window: Window, reason: str) -> Forecast:
        shares = rule_shares(window, self._task_classes)
        return Forecast(
            mode=Mode.RULE,
            reason=reason,
            wanted=shares,
            rule_shares=shares,
            residuals=None,
            features=encode(window, self._task_classes)[:, -1].astype(np.float64),
            feature_names=FEATURE_NAMES,
            unfamiliarity=np.zeros(len(shares)),
            violation=None,
            model_version=None,
            window=window,
        )
