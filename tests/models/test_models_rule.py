import dataclasses
import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from window_examples import BATCH, VIP, Measured, measured_windows, reordered, window

from models.classes import Slo, TaskClass
from models.rule import RULE, RuleParameters, mean_work_tokens, rule_shares
from models.window import STEPS, Signal, Window

CLASSES = (VIP, BATCH)


def test_weight_is_value_over_slo_when_the_work_is_the_same() -> None:
    traffic = window(CLASSES, {Signal.ARRIVALS_PER_S: 2.0, Signal.PROMPT_TOKENS_PER_S: 200.0})
    assert rule_shares(traffic, CLASSES) == pytest.approx([32 / 33, 1 / 33])


@pytest.mark.parametrize("unseen", [0.0, math.nan])
def test_idle_and_unknown_windows_leave_value_over_slo(unseen: float) -> None:
    assert rule_shares(window(CLASSES, default=unseen), CLASSES) == pytest.approx([32 / 33, 1 / 33])


def test_a_lone_class_gets_everything() -> None:
    assert rule_shares(window([VIP]), [VIP]) == pytest.approx([1.0])


def test_mean_work_is_prompt_per_arrival_and_weighted_generation_per_finished_request() -> None:
    traffic = window(
        CLASSES,
        {
            Signal.ARRIVALS_PER_S: [[1.0], [0.5]],
            Signal.PROMPT_TOKENS_PER_S: [[100.0], [500.0]],
            Signal.FINISHED_PER_S: [[1.0], [0.25]],
            Signal.GENERATION_TOKENS_PER_S: [[10.0], [20.0]],
        },
    )
    unshrunk = RuleParameters(generated_token_cost=4.0, prior_requests=1e-9)
    assert mean_work_tokens(traffic, unshrunk) == pytest.approx([100 + 4 * 10, 1000 + 4 * 80])


def test_few_requests_are_shrunk_toward_the_mean_of_all() -> None:
    traffic = window(
        CLASSES,
        # 60 requests of 100 tokens; 1 request of 10,000 tokens
        {
            Signal.ARRIVALS_PER_S: [[1.0], [1 / 60]],
            Signal.PROMPT_TOKENS_PER_S: [[100.0], [10_000 / 60]],
        },
    )
    pooled = (16_000 + 4 * 256) / (61 + 4)
    prompts = mean_work_tokens(traffic) - RULE.generated_token_cost * RULE.prior_generation_tokens
    assert prompts == pytest.approx([(6_000 + 4 * pooled) / 64, (10_000 + 4 * pooled) / 5])


def test_unknown_steps_count_as_not_seen_rather_than_as_zero() -> None:
    half = {Signal.ARRIVALS_PER_S: 2.0, Signal.PROMPT_TOKENS_PER_S: 800.0}
    whole = window(CLASSES, half, steps=STEPS // 2)
    gaps = np.where(np.arange(STEPS) % 2, np.nan, 1.0)
    gappy = window(CLASSES, {signal: value * gaps for signal, value in half.items()})
    assert mean_work_tokens(gappy) == pytest.approx(mean_work_tokens(whole))


def test_tokens_without_a_known_request_count_do_not_inflate_the_work() -> None:
    unknown_arrivals = window(
        CLASSES, {Signal.ARRIVALS_PER_S: math.nan, Signal.PROMPT_TOKENS_PER_S: 1e6}
    )
    assert mean_work_tokens(unknown_arrivals) == pytest.approx(mean_work_tokens(window(CLASSES)))


def test_no_weight_falls_below_a_thousandth_of_the_largest() -> None:
    extreme = (dataclasses.replace(VIP, value=1e9), BATCH)
    shares = rule_shares(window(extreme), extreme)
    assert shares[0] / shares[1] == pytest.approx(1000.0)


def test_classes_in_another_order_than_the_window_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\('vip', 'batch'\), not \('batch', 'vip'\)"):
        rule_shares(window(CLASSES), CLASSES[::-1])


@given(measured_windows())
def test_shares_are_positive_and_sum_to_one(measured: Measured) -> None:
    shares = rule_shares(*measured)
    assert (shares > 0).all()
    assert shares.sum() == pytest.approx(1.0)


@given(measured_windows(), st.randoms())
def test_order_of_classes_does_not_matter(measured: Measured, random: Random) -> None:
    traffic, classes = measured
    order = random.sample(range(len(classes)), len(classes))
    shares = rule_shares(reordered(traffic, order), [classes[index] for index in order])
    assert shares == pytest.approx(rule_shares(traffic, classes)[order])


@given(measured_windows(), st.floats(0.01, 100.0), st.floats(0.01, 100.0))
def test_only_ratios_of_values_and_objectives_matter(
    measured: Measured, value_unit: float, time_unit: float
) -> None:
    traffic, classes = measured
    rescaled = [
        TaskClass(
            task_class.name,
            Slo(ttft_s=task_class.slo.ttft_s * time_unit),
            value=task_class.value * value_unit,
        )
        for task_class in classes
    ]
    assert rule_shares(traffic, rescaled) == pytest.approx(rule_shares(traffic, classes))


def _obvious_work(
    traffic: Window, row: int, tokens: Signal, requests: Signal, prior_tokens: float
) -> float:
    """Sums in plain loops: (tokens of the row, requests of the row, pooled mean)."""
    sums = []
    for tokens_row, requests_row in zip(
        traffic.signals[tokens], traffic.signals[requests], strict=True
    ):
        token_sum = request_sum = 0.0
        for token_rate, request_rate in zip(tokens_row, requests_row, strict=True):
            if 0 <= token_rate <= 1e15 and 0 <= request_rate <= 1e15:
                token_sum += token_rate * 5.0
                request_sum += request_rate * 5.0
        sums.append((token_sum, request_sum))
    pooled = (sum(s[0] for s in sums) + 4 * prior_tokens) / (sum(s[1] for s in sums) + 4)
    return (sums[row][0] + 4 * pooled) / (sums[row][1] + 4)


@given(measured_windows())
def test_shares_agree_with_the_formula_written_out(measured: Measured) -> None:
    traffic, classes = measured
    weights = []
    for row, task_class in enumerate(classes):
        prompt = _obvious_work(
            traffic, row, Signal.PROMPT_TOKENS_PER_S, Signal.ARRIVALS_PER_S, 256.0
        )
        generation = _obvious_work(
            traffic, row, Signal.GENERATION_TOKENS_PER_S, Signal.FINISHED_PER_S, 64.0
        )
        work = prompt + 4.0 * generation
        weights.append(task_class.value / task_class.slo.ttft_s / work)
    bounded = [max(weight, max(weights) / 1000.0) for weight in weights]
    expected = [weight / sum(bounded) for weight in bounded]
    assert rule_shares(traffic, classes) == pytest.approx(expected)
