import pytest

from controlplane.modes import MissLimits, Standing, after_miss, after_window
from controlplane.snapshot import Mode

LIMITS = MissLimits(hold_after_missed=2, static_after_missed=6)
LEARNED = after_window(Mode.LEARNED, "champion 3")


def _missed(standing: Standing, times: int) -> Standing:
    for _ in range(times):
        standing = after_miss(standing, "timed out", LIMITS)
    return standing


@pytest.mark.parametrize(
    ("misses", "mode"),
    [
        (0, Mode.LEARNED),
        (1, Mode.LEARNED),
        (2, Mode.HOLD),
        (5, Mode.HOLD),
        (6, Mode.STATIC),
        (50, Mode.STATIC),
    ],
)
def test_mode_worsens_with_the_missed_windows(misses: int, mode: Mode) -> None:
    standing = _missed(LEARNED, misses)
    assert standing.mode is mode
    assert standing.missed_windows == misses


def test_reason_tells_how_many_and_why() -> None:
    assert _missed(LEARNED, 1).reason == "champion 3"
    assert _missed(LEARNED, 3).reason == "3 windows missed: timed out"
    assert _missed(LEARNED, 9).reason == "9 windows missed: timed out"


def test_without_any_window_there_is_nothing_to_hold() -> None:
    standing = _missed(Standing(Mode.STATIC, "first start"), 3)
    assert standing.mode is Mode.STATIC
    assert standing.reason == "no window so far: timed out"


def test_one_window_brings_everything_back() -> None:
    assert after_window(Mode.RULE, "no champion") == Standing(
        Mode.RULE, "no champion", missed_windows=0, can_hold=True
    )


def test_static_before_hold_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"hold_after_missed \(6\).*static_after_missed \(2\)"):
        MissLimits(hold_after_missed=6, static_after_missed=2)
