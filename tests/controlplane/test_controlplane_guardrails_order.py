"""All guardrails together."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.guardrails import Bounds, Course, Guardrail, Ledger, Proposal, Ruling, decide
from controlplane.guardrails.cost import Load

BOUNDS = Bounds()
IDLE = Load(np.ones(2), np.zeros(2), np.zeros(2), 0.0)
BUSY = Load(np.array([1.0, 1.0]), np.array([0.9, 0.1]), np.array([0.45, 0.45]), 2.0)
RULE = np.array([0.5, 0.5])


def _proposal(
    wanted: Sequence[float],
    *,
    unfamiliarity: float = 0.0,
    measured: bool = True,
    jumped: bool = False,
    load: Load = IDLE,
) -> Proposal:
    return Proposal(
        wanted=np.array(wanted),
        rule=RULE,
        unfamiliarity=np.array([0.0, unfamiliarity]),
        measured=np.array([True, measured]),
        jumped=np.array([jumped, False]),
        load=load,
    )


def _decide(proposal: Proposal, course: Course | None = None, bounds: Bounds = BOUNDS) -> Ruling:
    start = course or Course.starting(np.array([0.5, 0.5]))
    return decide(proposal, start, floors=np.zeros(2), bounds=bounds)


def test_failure_10_no_number_reaches_a_weight_and_a_nan_does_not_stick() -> None:
    blind = _decide(_proposal([math.nan, math.nan]))
    assert blind.shares == pytest.approx([0.5, 0.5])
    assert blind.fired == ((Guardrail.FINITE,), (Guardrail.FINITE,))
    after = _decide(_proposal([0.55, 0.45]), blind.course)
    assert after.shares == pytest.approx([0.55, 0.45])


def test_failure_11_a_class_that_was_not_measured_keeps_its_share() -> None:
    ruling = _decide(_proposal([0.9, 0.1], measured=False))
    assert ruling.shares == pytest.approx([0.5, 0.5])
    assert ruling.fired[1] == (Guardrail.STALE,)


def test_a_strange_window_halves_the_models_say() -> None:
    wanted = [0.6, 0.4]
    ruling = _decide(_proposal(wanted, unfamiliarity=0.625))
    assert ruling.trust == 0.5
    halfway = np.log(ruling.shares[0] / ruling.shares[1])
    assert halfway == pytest.approx(np.log(1.5) / 2)
    assert ruling.rule_because is None
    assert Guardrail.UNFAMILIAR in ruling.fired[0]


def test_a_window_like_none_before_gives_the_rule_and_says_so() -> None:
    ruling = _decide(_proposal([0.9, 0.1], unfamiliarity=3.0))
    assert ruling.shares == pytest.approx(RULE)
    assert ruling.rule_because is not None
    assert ruling.rule_because.startswith("out of distribution")


def test_a_jump_of_traffic_lifts_the_step() -> None:
    calm = _decide(_proposal([0.7, 0.3]))
    assert calm.fired == ((Guardrail.STEP,), (Guardrail.STEP,))
    jumped = _decide(_proposal([0.7, 0.3], jumped=True))
    assert jumped.shares == pytest.approx([0.7, 0.3])
    assert jumped.fired == ((Guardrail.MUTATION,), (Guardrail.MUTATION,))


def test_what_is_hardly_off_stays() -> None:
    ruling = _decide(_proposal([0.505, 0.495]))
    assert ruling.shares == pytest.approx([0.5, 0.5])
    assert ruling.fired == ((Guardrail.HYSTERESIS,), (Guardrail.HYSTERESIS,))


def test_a_model_that_costs_more_than_the_rule_gives_way_to_it() -> None:
    course = Course.starting(np.array([0.5, 0.5]))
    bounds = Bounds(budget_allowance=0.0)
    ruling = _decide(_proposal([0.1, 0.9], load=BUSY), course, bounds)
    assert ruling.shares == pytest.approx(RULE)
    assert ruling.fired == ((Guardrail.STEP, Guardrail.BUDGET), (Guardrail.STEP, Guardrail.BUDGET))
    assert ruling.rule_because is not None
    assert "of the rule's" in ruling.rule_because


def test_a_model_that_costs_less_builds_credit() -> None:
    course = Course.starting(np.array([0.5, 0.5]))
    for _ in range(20):
        course = _decide(_proposal([0.8, 0.2], load=BUSY), course).course
    assert course.shares == pytest.approx([0.8, 0.2])
    assert 0 < course.ledger.played < course.ledger.rule


@given(
    st.lists(st.tuples(st.floats(-3, 3), st.booleans(), st.floats(0, 1.2)), max_size=60),
    st.floats(0.0, 0.4),
)
def test_in_every_tick_the_promises_hold_together(
    ticks: list[tuple[float, bool, float]], floor: float
) -> None:
    floors = np.array([floor, 0.1])
    bounds = Bounds(max_log_share_step=2.0, mutation_log_share_step=4.0, hysteresis_start=0.0,
                    hysteresis_stop=0.0)  # fmt: skip
    course = Course.starting(np.array([0.5, 0.5]))
    for log_odds, jumped, unfamiliarity in ticks:
        wanted = [1 / (1 + math.exp(-log_odds)), 1 / (1 + math.exp(log_odds))]
        proposal = _proposal(wanted, jumped=jumped, unfamiliarity=unfamiliarity, load=BUSY)
        ruling = decide(proposal, course, floors=floors, bounds=bounds)
        moved = np.abs(np.log(ruling.shares / course.shares)).max()
        assert ruling.shares.sum() == pytest.approx(1.0)
        assert (ruling.shares >= floors - 1e-12).all()
        assert moved <= (4.0 if jumped else 2.0) + 1e-9
        # With steps that reach everywhere, the rule can always be played.
        ledger = ruling.course.ledger
        assert ledger.played <= 1.05 * ledger.rule + 1.0 + 1e-9
        course = ruling.course


def test_the_ledger_outlives_weights_that_come_from_no_window() -> None:
    course = Course(RULE, RULE, moving=True, ledger=Ledger(3.0, 2.0))
    assert course.restarted(np.array([0.6, 0.4])).ledger == Ledger(3.0, 2.0)


@pytest.mark.parametrize(
    "numbers",
    [
        {"max_log_share_step": 2.0},
        {"familiar_within": 1.0},
        {"hysteresis_stop": 0.5},
    ],
)
def test_bounds_that_contradict_each_other_are_refused(numbers: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"above|same"):
        Bounds(**numbers)
