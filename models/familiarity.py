"""Whether a window looks like those that a network learned from.

Shapes: C classes, T steps, F features; ``...`` any leading axes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.features import FEATURE_NAMES

TAIL = 0.005
"""Part of the training values left out at either end: single outliers must not widen a range."""
LEAST_WIDTH = 0.5
"""Of a range. Features are logarithms, fractions and flags; one that never varied in training
must not make its first hundredth of a difference strange."""


@dataclass(frozen=True, slots=True)
class FeatureRanges:
    """The central range of each feature in training, in the order of `FEATURE_NAMES`.

    Raises:
        ValueError: there is not one finite range, low before high, for each feature.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        """One range per feature."""
        low, high = np.array(self.low, dtype=float), np.array(self.high, dtype=float)
        if low.shape != high.shape or low.shape != (len(FEATURE_NAMES),):
            raise ValueError(f"expected {len(FEATURE_NAMES)} ranges of features")
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
            raise ValueError("a range of a feature is no range")

    @classmethod
    def of(cls, features: NDArray[np.float32]) -> "FeatureRanges":
        """The ranges of training features [..., F]."""
        rows = features.reshape(-1, features.shape[-1])  # [N, F]
        low, high = np.quantile(rows, (TAIL, 1.0 - TAIL), axis=0)  # [F] each
        return cls(tuple(low.tolist()), tuple(high.tolist()))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "FeatureRanges":
        """Out of a manifest.

        Raises:
            KeyError, TypeError, ValueError: it holds no ranges.
        """
        return cls(
            tuple(float(value) for value in document["low"]),
            tuple(float(value) for value in document["high"]),
        )

    def excess(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """How far each class is outside, in widths of the range: [C, T, F] -> [C], 0 inside.

        The strangest feature in the strangest step counts.
        """
        low, high = np.array(self.low), np.array(self.high)  # [F]
        outside = np.maximum(np.maximum(low - features, features - high), 0.0)  # [C, T, F]
        widths: NDArray[np.float64] = outside / np.maximum(high - low, LEAST_WIDTH)
        strangest: NDArray[np.float64] = widths.max(axis=(1, 2))
        return strangest
