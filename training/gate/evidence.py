"""What a candidate and the champion did in the same simulated futures."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Paired:
    """One quantity under both models; element i of both comes from the same trace and seed.

    Raises:
        ValueError: the two are of different length, or empty.
    """

    champion: tuple[float, ...]
    candidate: tuple[float, ...]

    def __post_init__(self) -> None:
        """One number each per pair."""
        if len(self.champion) != len(self.candidate) or not self.champion:
            raise ValueError(
                f"{len(self.champion)} numbers of the champion and {len(self.candidate)} of the "
                "candidate are no pairs"
            )

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.champion)

    @property
    def finite(self) -> bool:
        """Whether every number is one."""
        return all(map(math.isfinite, self.champion + self.candidate))

    @property
    def rows(self) -> tuple[Row, Row]:
        """Champion and candidate, [pairs] each."""
        return np.array(self.champion), np.array(self.candidate)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both models on one regime or one set of held-out windows.

    Attributes:
        name: of the regime.
        loss: value-weighted SLO loss; smaller is better.
        worst_attainment_ratio: SLO attainment of the class that fares worst; larger is better.
        tokens_per_s: larger is better.

    Raises:
        ValueError: the three are of different length.
    """

    name: str
    loss: Paired
    worst_attainment_ratio: Paired
    tokens_per_s: Paired

    def __post_init__(self) -> None:
        """The same pairs in all three."""
        lengths = {len(self.loss), len(self.worst_attainment_ratio), len(self.tokens_per_s)}
        if len(lengths) != 1:
            raise ValueError(f"{self.name}: {sorted(lengths)} pairs, which should be the same")

    @property
    def finite(self) -> bool:
        """Whether every number is one."""
        parts = (self.loss, self.worst_attainment_ratio, self.tokens_per_s)
        return all(part.finite for part in parts)


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the gates look at.

    Attributes:
        schema_hash: of the candidate.
        serving_schema_hash: of the release that would serve it.
        calibration_hash: of the simulator that the comparisons come from.
        current_calibration_hash: of the newest calibration of the fleet.
        outputs_checked: numbers that the candidate gave for regimes and windows.
        outputs_not_finite: how many of them were none.
        regimes: the frozen suite of old regimes.
        replay: held-out windows of the fleet's own history.
    """

    schema_hash: str
    serving_schema_hash: str
    calibration_hash: str
    current_calibration_hash: str
    outputs_checked: int
    outputs_not_finite: int
    regimes: tuple[Comparison, ...]
    replay: Comparison
