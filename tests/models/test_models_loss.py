"""The loss, against a slow obvious version."""

import math
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.classes import Slo, TaskClass
from models.loss import WORST_CLASS, Fates, request_losses, slo_loss

NOT_YET = math.nan
VIP = TaskClass("vip", Slo(ttft_s=1.0, tpot_s=0.1, e2e_s=20.0), value=4.0)
BATCH = TaskClass("batch", Slo(ttft_s=10.0), value=1.0)
CLASSES = (VIP, BATCH)

Row: TypeAlias = tuple[int, float, float, float, float, bool]
"""Class, age, TTFT, TPOT, e2e, lost."""


def fates(*rows: Row) -> Fates:
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Fates(*columns[:1], *(column.astype(float) for column in columns[1:5]), columns[5])


def obvious_request_loss(row: Row) -> float:
    index, age_s, ttft_s, tpot_s, e2e_s, lost = row
    one = CLASSES[index]
    if lost:
        return 1.0
    worst = 0.0
    seen_ttft_s = age_s if math.isnan(ttft_s) else ttft_s
    seen_e2e_s = age_s if math.isnan(e2e_s) else e2e_s
    for seen_s, promised_s in (
        (seen_ttft_s, one.slo.ttft_s),
        (tpot_s, one.slo.tpot_s),
        (seen_e2e_s, one.slo.e2e_s),
    ):
        if promised_s is not None and not math.isnan(seen_s):
            worst = max(worst, seen_s / promised_s)
    if worst <= 1.0:
        return 0.0
    if worst >= 10.0:
        return 1.0
    return 0.5 + 0.5 * (worst - 1.0) / 9.0


durations = st.sampled_from([0.0, 0.05, 1.0, 1.5, 10.0, 400.0]) | st.floats(0.0, 300.0)
rows = st.tuples(
    st.integers(0, 1),
    durations,
    st.just(NOT_YET) | durations,
    st.just(NOT_YET) | durations,
    st.just(NOT_YET) | durations,
    st.booleans(),
)


@given(st.lists(rows, max_size=12))
def test_loss_is_that_of_the_obvious_version(
    drawn: list[Row],
) -> None:
    known = (
        fates(*drawn) if drawn else Fates(np.zeros(0, int), *np.zeros((4, 0)), np.zeros(0, bool))
    )
    each = [obvious_request_loss(row) for row in drawn]
    np.testing.assert_allclose(request_losses(known, CLASSES), each)
    found = slo_loss(known, CLASSES)
    own = [
        [loss for row, loss in zip(drawn, each, strict=True) if row[0] == index]
        for index in range(2)
    ]
    worth = sum(CLASSES[row[0]].value for row in drawn)
    weighted = sum(CLASSES[row[0]].value * loss for row, loss in zip(drawn, each, strict=True))
    mean = weighted / worth if drawn else 0.0
    worst = max((sum(losses) / len(losses) for losses in own if losses), default=0.0)
    assert found.mean == pytest.approx(mean)
    assert found.worst == pytest.approx(worst)
    assert found.total == pytest.approx(mean + WORST_CLASS * worst)
    for index, losses in enumerate(own):
        expected = sum(losses) / len(losses) if losses else math.nan
        assert found.by_class[index] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("ttft_s", "loss"),
    [(2.0, 0.0), (10.0, 0.0), (10.0 + 1e-9, 0.5), (55.0, 0.75), (100.0, 1.0), (5000.0, 1.0)],
)
def test_half_is_lost_by_missing_and_half_grows_with_lateness(ttft_s: float, loss: float) -> None:
    known = fates((1, 6000.0, ttft_s, NOT_YET, ttft_s, False))
    assert request_losses(known, CLASSES)[0] == pytest.approx(loss)


def test_waiting_past_the_slo_counts_before_it_ends() -> None:
    in_time = fates((0, 0.9, NOT_YET, NOT_YET, NOT_YET, False))
    past = fates((0, 1.1, NOT_YET, NOT_YET, NOT_YET, False))
    assert request_losses(in_time, CLASSES)[0] == 0.0
    assert request_losses(past, CLASSES)[0] > 0.5


def test_rejected_and_failed_requests_are_wholly_lost() -> None:
    assert request_losses(fates((1, 0.1, 0.1, NOT_YET, 0.1, True)), CLASSES)[0] == 1.0


@given(st.lists(rows, min_size=1, max_size=8), st.floats(0.0, 50.0))
def test_the_loss_of_what_is_not_over_never_falls_with_time(
    drawn: list[Row], later_s: float
) -> None:
    now = fates(*drawn)
    later = Fates(now.class_index, now.age_s + later_s, now.ttft_s, now.tpot_s, now.e2e_s, now.lost)
    assert (request_losses(later, CLASSES) >= request_losses(now, CLASSES)).all()


def test_columns_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="must be"):
        Fates(
            np.zeros(2, int), np.zeros(1), np.zeros(2), np.zeros(2), np.zeros(2), np.zeros(2, bool)
        )
