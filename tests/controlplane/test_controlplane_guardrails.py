import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from controlplane.guardrails import Guarded, Guardrail, Shares, default_shares, guard
from models.classes import Slo, TaskClass

STEP = 0.2


def _guard(
    wanted: list[float], previous: list[float], floors: list[float] | None = None
) -> Guarded:
    return guard(
        np.array(wanted),
        previous=np.array(previous),
        floors=np.array(floors or [0.0] * len(wanted)),
        max_log_share_step=STEP,
    )


def test_weights_within_reach_are_published_as_shares() -> None:
    guarded = _guard([5.5, 4.5], [0.5, 0.5])
    assert guarded.shares == pytest.approx([0.55, 0.45])
    assert guarded.fired == ((), ())


def test_log_share_moves_by_at_most_the_step() -> None:
    guarded = _guard([0.9, 0.1], [0.5, 0.5])
    # The second may fall to 0.5 * exp(-0.2); the first gets the rest, which it may.
    assert guarded.shares == pytest.approx([1 - 0.5 * math.exp(-STEP), 0.5 * math.exp(-STEP)])
    assert guarded.fired == ((Guardrail.STEP,), (Guardrail.STEP,))


def test_floor_holds_and_the_others_divide_the_rest_in_their_ratio() -> None:
    guarded = _guard([0.04, 0.48, 0.48], [0.06, 0.47, 0.47], [0.06, 0.0, 0.0])
    assert guarded.shares == pytest.approx([0.06, 0.47, 0.47])
    assert guarded.fired == ((Guardrail.FLOOR,), (), ())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0])
def test_unusable_weight_keeps_its_previous_share(bad: float) -> None:
    guarded = _guard([bad, 2.0, 2.0], [0.2, 0.4, 0.4])
    assert guarded.shares == pytest.approx([0.2, 0.4, 0.4])
    assert guarded.fired == ((Guardrail.FINITE,), (), ())


def test_nothing_usable_keeps_everything() -> None:
    guarded = _guard([math.nan, math.nan], [0.3, 0.7])
    assert guarded.shares == pytest.approx([0.3, 0.7])


def test_default_shares_follow_the_values_above_the_floors() -> None:
    classes = [
        TaskClass("vip", Slo(1.0), value=9.0),
        TaskClass("free", Slo(1.0), value=0.9),
        TaskClass("batch", Slo(1.0), value=0.1, floor=0.2),
    ]
    assert default_shares(classes) == pytest.approx([0.8 * 9 / 9.9, 0.8 * 0.9 / 9.9, 0.2])


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Shares, Shares, Shares, float]:
    """Any wanted weights, floors that leave room, previous shares that keep them."""
    count = draw(st.integers(1, 12))
    part = st.floats(0.001, 1.0)
    floors = np.array(draw(st.lists(part, min_size=count, max_size=count)))
    floors *= draw(st.floats(0.0, 0.99)) / floors.sum()
    above = np.array(draw(st.lists(part, min_size=count, max_size=count)))
    previous = floors + (1 - floors.sum()) * above / above.sum()
    wanted = draw(npst.arrays(np.float64, count, elements=st.floats()))
    return wanted, previous, floors, draw(st.floats(0.01, 3.0))


@given(_cases())
def test_shares_sum_to_one_and_stay_in_the_box(case: tuple[Shares, Shares, Shares, float]) -> None:
    wanted, previous, floors, step = case
    shares = guard(wanted, previous=previous, floors=floors, max_log_share_step=step).shares
    assert shares.sum() == pytest.approx(1.0, abs=1e-9)
    assert (shares > 0).all()
    assert (shares >= floors - 1e-12).all()
    assert (np.abs(np.log(shares / previous)) <= step + 1e-9).all()


@given(_cases(), st.randoms())
def test_order_of_classes_does_not_matter(
    case: tuple[Shares, Shares, Shares, float], random: Random
) -> None:
    wanted, previous, floors, step = case
    order = list(range(len(wanted)))
    random.shuffle(order)
    straight = guard(wanted, previous=previous, floors=floors, max_log_share_step=step)
    shuffled = guard(
        wanted[order], previous=previous[order], floors=floors[order], max_log_share_step=step
    )
    assert shuffled.shares == pytest.approx(straight.shares[order], rel=1e-6, abs=1e-12)
    assert shuffled.fired == tuple(straight.fired[row] for row in order)


@given(_cases())
def test_agrees_with_a_slow_search_for_the_common_factor(
    case: tuple[Shares, Shares, Shares, float],
) -> None:
    _, previous, floors, step = case
    wanted = previous[::-1] + 0.01
    shares = guard(wanted, previous=previous, floors=floors, max_log_share_step=step).shares
    low = np.maximum(floors, previous * np.exp(-step))
    high = np.minimum(previous * np.exp(step), 1.0)
    small, large = 0.0, 1e12
    for _ in range(300):
        factor = (small + large) / 2
        too_much = np.clip(factor * wanted, low, high).sum() > 1
        small, large = (small, factor) if too_much else (factor, large)
    assert shares == pytest.approx(np.clip(small * wanted, low, high), abs=1e-7)


@given(_cases())
def test_guarding_what_is_in_force_changes_nothing(
    case: tuple[Shares, Shares, Shares, float],
) -> None:
    _, previous, floors, step = case
    guarded = guard(previous, previous=previous, floors=floors, max_log_share_step=step)
    assert guarded.shares == pytest.approx(previous, rel=1e-9)
