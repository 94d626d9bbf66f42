import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.dither import LARGEST_SWING, OFF, Dither, dithered
from models.classes import Slo, TaskClass, Tier

AMPLITUDE = 0.05
ON = Dither(amplitude=AMPLITUDE, seed=3)
CLASSES = (
    TaskClass("vip", Slo(0.5), tier=Tier.P0),
    TaskClass("chat", Slo(2.0)),
    TaskClass("long", Slo(10.0)),
    TaskClass("batch", Slo(60.0), tier=Tier.P2),
)
weights = st.lists(st.floats(1e-6, 1e6), min_size=4, max_size=4).map(np.array)
instants = st.floats(0, 2e9)


def test_off_changes_nothing() -> None:
    wanted = np.array([0.4, 0.3, 0.2, 0.1])
    untouched = dithered(wanted, CLASSES, OFF, at_unix_s=1e9)
    assert untouched.wanted is wanted
    assert untouched.shifts is None


@given(wanted=weights, at_unix_s=instants)
def test_p0_keeps_its_share_and_the_others_their_sum(wanted: np.ndarray, at_unix_s: float) -> None:
    changed = dithered(wanted, CLASSES, ON, at_unix_s=at_unix_s)
    assert changed.wanted[0] == wanted[0]
    assert changed.wanted.sum() == pytest.approx(wanted.sum())
    assert changed.shifts is not None
    assert changed.wanted == pytest.approx(wanted * np.exp(changed.shifts))
    assert np.abs(changed.shifts).max() <= 2 * AMPLITUDE + 1e-12


@given(wanted=weights, first=instants, second=instants)
def test_no_change_is_larger_than_the_largest_swing(
    wanted: np.ndarray, first: float, second: float
) -> None:
    one, other = (dithered(wanted, CLASSES, ON, at_unix_s=at).shifts for at in (first, second))
    assert one is not None
    assert other is not None
    assert np.abs(one - other).max() <= LARGEST_SWING * AMPLITUDE + 1e-12


@given(wanted=weights, at_unix_s=instants, order=st.permutations(range(4)))
def test_order_of_the_classes_does_not_matter(
    wanted: np.ndarray, at_unix_s: float, order: list[int]
) -> None:
    changed = dithered(wanted, CLASSES, ON, at_unix_s=at_unix_s).wanted
    permuted = dithered(
        wanted[order], [CLASSES[row] for row in order], ON, at_unix_s=at_unix_s
    ).wanted
    assert permuted == pytest.approx(changed[order])


def signs(dither: Dither, count: int) -> np.ndarray:
    wanted = np.ones(4)
    shifts = [
        dithered(wanted, CLASSES, dither, at_unix_s=period * dither.hold_s).shifts
        for period in range(count)
    ]
    return np.sign(np.array([shift[2] - shift[1] for shift in shifts if shift is not None]))


def test_change_lasts_for_its_hold_and_follows_from_the_seed() -> None:
    wanted = np.ones(4)
    start, later, next_hold = (
        dithered(wanted, CLASSES, Dither(0.05, hold_s=30.0, seed=1), at_unix_s=at).wanted
        for at in (300.0, 329.9, 330.0)
    )
    assert (start == later).all()
    holds = [signs(Dither(0.05, seed=seed), 200) for seed in (1, 1, 2)]
    assert (holds[0] == holds[1]).all()
    assert (holds[0] != holds[2]).any()
    assert not (start == next_hold).all() or len(set(holds[0])) > 1


def test_signs_of_two_classes_are_as_good_as_independent() -> None:
    difference = signs(Dither(0.05, seed=5), 2000)
    assert np.mean(difference == 0) == pytest.approx(0.5, abs=0.05)  # both the same way
    assert np.mean(difference == 1) == pytest.approx(0.25, abs=0.05)


def test_effect_of_a_weight_can_be_told_although_it_follows_the_load() -> None:
    """Load moves weight and latency alike; only the dither tells what the weight does."""
    rng = np.random.default_rng(0)
    effect, shifts, latency, weight = -0.7, [], [], []
    for period in range(4000):
        load = rng.normal()
        wanted = np.exp(np.array([0.0, 0.5 * load, 0.0, 0.0]))
        changed = dithered(wanted, CLASSES, ON, at_unix_s=period * ON.hold_s)
        assert changed.shifts is not None
        shifts.append(changed.shifts[1])
        weight.append(math.log(changed.wanted[1]))
        latency.append(effect * weight[-1] + 2.0 * load + rng.normal(scale=0.02))
    naive = np.polyfit(weight, latency, 1)[0]
    told = np.cov(shifts, latency)[0, 1] / np.cov(shifts, weight)[0, 1]
    assert naive > 0
    assert told < 0


def test_what_is_no_weight_is_left_alone() -> None:
    wanted = np.array([1.0, np.nan, 0.0, 2.0])
    changed = dithered(wanted, CLASSES, ON, at_unix_s=0.0)
    assert np.array_equal(changed.wanted[:3], wanted[:3], equal_nan=True)
    assert changed.wanted[3] == pytest.approx(2.0)  # alone, it keeps its sum


@pytest.mark.parametrize(
    "numbers", [{"amplitude": -0.1}, {"amplitude": 0.5}, {"hold_s": 0.0}, {"hold_s": math.inf}]
)
def test_numbers_outside_their_range_are_refused(numbers: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(numbers))):
        Dither(**numbers)
