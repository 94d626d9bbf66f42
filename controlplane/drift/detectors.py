"""River's change detectors, one set for each class. Memory is bounded. Imports SciPy."""

from collections import deque
from collections.abc import Sequence
from statistics import fmean

from river.drift import ADWIN, KSWIN, PageHinkley

RECENT = 30
"""Residuals that say where a class is now: two and a half minutes."""
WORSE_BY = 0.05
"""A mean residual further from 0 by that much, as a violation fraction, is worse."""
RECOVERED_AFTER = 120
"""Residuals in a row, ten minutes of them, until a class counts as recovered."""

_ADWIN_DELTA = 0.002
_PH_DELTA = 0.02
"""Changes of the mean that Page-Hinkley is to overlook."""
_PH_THRESHOLD = 10.0
"""Chosen with residuals of standard deviation 0.2 in mind: a shift of 0.2 is found within
55 steps, and exp(-2 * 0.02 * 10 / 0.2^2) = 5e-5 is how often noise alone gets there."""
_KSWIN_ALPHA = 1e-6
"""Neighbouring steps are correlated, every step is a test, and so is every channel."""


class ResidualWatch:
    """One class's residuals.

    ADWIN (Bifet and Gavalda 2007, SDM) finds changes of the mean at any scale, Page-Hinkley
    (Page 1954, Biometrika 41) slow ones sooner. A change makes the class suspect until the
    recent residuals are all from after it. It has drifted when they are by then further from
    0 than they used to be: a model that gets better has not.
    """

    def __init__(self) -> None:
        self.drifted_by: str | None = None
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._usual_sum = 0.0
        self._usual_count = 0
        self._suspected_by = ""
        self._suspect_for = 0
        self._good = 0
        self._restart()

    @property
    def usual(self) -> float:
        """Mean residual before the recent ones; 0 without any."""
        return self._usual_sum / self._usual_count if self._usual_count else 0.0

    @property
    def recent(self) -> float:
        """Mean of the recent residuals; 0 without any."""
        return fmean(self._recent) if self._recent else 0.0

    def update(self, residual: float) -> bool:
        """Take one residual; True when a drift has just been found."""
        self._remember(residual)
        if self.drifted_by is not None:
            self._watch_recovery()
            return False
        self._detect(residual)
        if self._suspect_for == 0 or not self._worse:
            return False
        self.drifted_by = self._suspected_by
        self._suspect_for = self._good = 0
        return True

    @property
    def _worse(self) -> bool:
        return abs(self.recent) > abs(self.usual) + WORSE_BY

    def _detect(self, residual: float) -> None:
        self._suspect_for = max(0, self._suspect_for - 1)
        for name, detector in self._detectors.items():
            detector.update(residual)
            if detector.drift_detected:
                self._suspected_by, self._suspect_for = name, RECENT

    def _remember(self, residual: float) -> None:
        """What a drifted class does is not what is usual."""
        if len(self._recent) == RECENT and self.drifted_by is None:
            self._usual_sum += self._recent[0]
            self._usual_count += 1
        self._recent.append(residual)

    def _watch_recovery(self) -> None:
        self._good = 0 if self._worse else self._good + 1
        if self._good >= RECOVERED_AFTER:
            self.drifted_by = None
            self._restart()

    def _restart(self) -> None:
        self._detectors = {
            "adwin": ADWIN(delta=_ADWIN_DELTA, clock=1),
            "page_hinkley": PageHinkley(delta=_PH_DELTA, threshold=_PH_THRESHOLD),
        }


class InputWatch:
    """One class's inputs: KSWIN (Raab, Heusinger and Schleif 2020, Neurocomputing) on each."""

    def __init__(self, channels: int) -> None:
        self._detectors = [KSWIN(alpha=_KSWIN_ALPHA, seed=channel) for channel in range(channels)]

    def update(self, values: Sequence[float]) -> int | None:
        """Take one value per channel; the first channel that has just changed, if any."""
        changed = None
        for channel, (detector, value) in enumerate(zip(self._detectors, values, strict=True)):
            detector.update(value)
            if detector.drift_detected and changed is None:
                changed = channel
        return changed
