"""Which mode the control plane is in. Pure.

    learned -> rule    no usable champion
            -> hold    >= hold_after_missed windows missed in a row
            -> static  >= static_after_missed, or nothing to hold yet

A single missed window changes nothing: the weights stay, and so does the mode.
"""

from dataclasses import dataclass

from controlplane.snapshot import Mode


@dataclass(frozen=True, slots=True)
class MissLimits:
    """How many windows in a row may be missed.

    Raises:
        ValueError: static would come before hold.
    """

    hold_after_missed: int
    static_after_missed: int

    def __post_init__(self) -> None:
        """Hold comes first."""
        if not 1 <= self.hold_after_missed < self.static_after_missed:
            raise ValueError(
                f"hold_after_missed ({self.hold_after_missed}) must be at least 1 and below "
                f"static_after_missed ({self.static_after_missed})"
            )


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the control plane stands after a tick.

    Attributes:
        missed_windows: in a row, up to now.
        can_hold: there are weights that came from a window.
    """

    mode: Mode
    reason: str
    missed_windows: int = 0
    can_hold: bool = False


def after_window(forecast_mode: Mode, reason: str) -> Standing:
    """A window came: the forecaster says whether it is learned or the rule."""
    return Standing(forecast_mode, reason, missed_windows=0, can_hold=True)


def after_miss(standing: Standing, problem: str, limits: MissLimits) -> Standing:
    """No window came, because of ``problem``."""
    missed = standing.missed_windows + 1
    if not standing.can_hold:
        return Standing(Mode.STATIC, f"no window so far: {problem}", missed)
    reason = f"{missed} windows missed: {problem}"
    if missed >= limits.static_after_missed:
        return Standing(Mode.STATIC, reason, missed, can_hold=True)
    if missed >= limits.hold_after_missed:
        return Standing(Mode.HOLD, reason, missed, can_hold=True)
    return Standing(standing.mode, standing.reason, missed, can_hold=True)
