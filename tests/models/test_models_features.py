import dataclasses
import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from window_examples import BATCH, VIP, Measured, measured_windows, reordered, window

from models import features
from models.features import FEATURE_NAMES, encode, schema_hash, violation_fraction
from models.window import STEPS, Signal

CLASSES = (VIP, BATCH)


def channel(encoded: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    return encoded[..., FEATURE_NAMES.index(name)]


def test_violation_fraction_counts_late_failed_and_waiting_past_slo() -> None:
    traffic = window(
        CLASSES,
        {
            Signal.FINISHED_PER_S: [[2.0], [0.0]],
            Signal.VIOLATIONS_PER_S: [[0.4], [0.0]],
            Signal.WAITING_PAST_SLO: [[5.0], [20.0]],
        },
    )
    seen = violation_fraction(traffic)
    assert seen.ratio[0] == pytest.approx((2 + 5 + 0.1) / (10 + 5 + 2))
    assert seen.ratio[1] == pytest.approx(20.1 / 22), "a starved class must not look healthy"
    assert seen.requests[:, 0] == pytest.approx([15.0, 20.0])


def test_idle_and_unknown_classes_have_the_prior_violation_fraction() -> None:
    idle = violation_fraction(window([VIP]))
    unknown = violation_fraction(window([VIP], default=math.nan))
    assert (idle.ratio == 0.05).all()
    assert (unknown.ratio == 0.05).all()
    assert idle.known.all()
    assert not unknown.known.any()


def test_one_late_request_is_no_certain_violation() -> None:
    one_late = window([VIP], {Signal.FINISHED_PER_S: 0.2, Signal.VIOLATIONS_PER_S: 0.2})
    assert violation_fraction(one_late).ratio == pytest.approx(1.1 / 3)


def test_channels_hold_the_documented_numbers() -> None:
    traffic = window(
        CLASSES,
        {
            Signal.TTFT_MEAN_S: [[2.0], [np.nan]],
            Signal.ARRIVALS_PER_S: [[3.0], [1.0]],
            Signal.OLDEST_WAIT_S: [[1.0], [12.0]],
            Signal.WAITING: [[0.0], [9.0]],
        },
    )
    encoded = encode(traffic, CLASSES)
    assert encoded.shape == (2, STEPS, len(FEATURE_NAMES))
    assert encoded.dtype == np.float32
    for name, expected in {
        "log_ttft_to_slo": [math.log(2.0), 0.0],
        "ttft_known": [1.0, 0.0],
        "log1p_oldest_wait_to_slo": [math.log(2.0), math.log(4.0)],
        "log1p_waiting": [0.0, math.log(10.0)],
        "flows_known": [1.0, 1.0],
        "queue_known": [1.0, 1.0],
        "log_ttft_slo_s": [0.0, math.log(4.0)],
        "log_relative_value": [math.log(8.0) / 2, -math.log(8.0) / 2],
        "demotes_late": [0.0, 1.0],
    }.items():
        assert channel(encoded, name)[:, 3] == pytest.approx(expected, abs=1e-6), name


def test_rule_channel_is_the_log_odds_of_the_rules_share() -> None:
    encoded = encode(window(CLASSES), CLASSES)
    assert channel(encoded, "rule_logit")[:, 0] == pytest.approx([math.log(32), -math.log(32)])


def test_lone_class_has_a_finite_rule_channel() -> None:
    assert channel(encode(window([VIP]), [VIP]), "rule_logit") == pytest.approx(12.0)


def test_demand_is_the_share_of_the_work_that_arrived() -> None:
    traffic = window(
        CLASSES,
        {
            Signal.ARRIVALS_PER_S: [[30.0], [10.0]],
            Signal.PROMPT_TOKENS_PER_S: [[3_000.0], [9_000.0]],
        },
    )
    share = channel(encode(traffic, CLASSES), "demand_share")
    assert share.sum(axis=0) == pytest.approx(1.0)
    assert share[1, 0] > share[0, 0], "few long prompts are more work than many short ones"


def test_unknown_is_masked_and_known_zero_is_not() -> None:
    gap = window(CLASSES)
    gap.signals[Signal.ARRIVALS_PER_S][0, 4] = np.nan
    gap.signals[Signal.WAITING][1, 7] = np.nan
    encoded = encode(gap, CLASSES)
    assert np.argwhere(channel(encoded, "flows_known") == 0).tolist() == [[0, 4]]
    assert np.argwhere(channel(encoded, "queue_known") == 0).tolist() == [[1, 7]]
    assert channel(encoded, "demand_share")[0, 4] == 0.0


def test_another_grid_than_that_of_training_is_refused() -> None:
    with pytest.raises(ValueError, match=r"reads 12 steps of 5.0 s, the window has 11 of 5.0 s"):
        encode(window(CLASSES, steps=STEPS - 1), CLASSES)
    with pytest.raises(ValueError, match=r"12 of 15.0 s"):
        encode(dataclasses.replace(window(CLASSES), step_s=15.0), CLASSES)


@given(measured_windows())
def test_no_window_gives_nan_or_a_number_out_of_bounds(measured: Measured) -> None:
    encoded = encode(*measured)
    assert np.isfinite(encoded).all()
    assert np.abs(encoded).max() <= 12.0


@given(measured_windows(), st.randoms())
def test_order_of_classes_only_orders_the_rows(measured: Measured, random: Random) -> None:
    traffic, classes = measured
    order = random.sample(range(len(classes)), len(classes))
    permuted = encode(reordered(traffic, order), [classes[index] for index in order])
    np.testing.assert_allclose(permuted, encode(traffic, classes)[order], atol=1e-5)


def test_schema_hash_follows_whatever_gives_the_numbers_their_meaning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = schema_hash()
    assert before == schema_hash()
    for name, value in (
        ("SCALING", dataclasses.replace(features.SCALING, prior_requests=3.0)),
        ("RULE", dataclasses.replace(features.RULE, generated_token_cost=2.0)),
        ("ARCHITECTURE", dataclasses.replace(features.ARCHITECTURE, bound=0.7)),
        ("FEATURE_NAMES", FEATURE_NAMES[::-1]),
        ("STEP_S", 10.0),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(features, name, value)
            assert schema_hash() != before, name
