import pytest
from hypothesis import given
from hypothesis import strategies as st
from shelf import policy_of

from dataplane.ordering import ORDERINGS, Account, is_late
from dataplane.ordering.account import GENERATED_TOKEN_COST
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, Discipline
from models.rule import RULE

NOW_S = 100.0
WEIGHED = [Discipline.APQ, Discipline.WFQ, Discipline.STRICT, Discipline.CP_SCORE]


def head(age_s: float = 1.0, prompt_tokens: int = 100, **fields: object) -> Ticket:
    ticket = Ticket("r", "k", NOW_S - age_s, prompt_tokens)
    for name, value in fields.items():
        setattr(ticket, name, value)
    return ticket


def index(
    discipline: Discipline, ticket: Ticket, policy: ClassPolicy, account: Account | None = None
) -> float:
    base, slope = ORDERINGS[discipline](ticket, policy, account or Account())
    return base + slope * (NOW_S - ticket.arrived_s)


def test_every_discipline_of_the_protocol_has_an_ordering() -> None:
    assert set(ORDERINGS) == set(Discipline)


def test_apq_is_weight_times_age_over_objective() -> None:
    assert index(Discipline.APQ, head(6.0), policy_of(3.0, 2.0)) == pytest.approx(9.0)


def test_gcmu_is_value_times_age_over_the_work_of_the_head_and_the_objective_squared() -> None:
    ticket = head(6.0, prompt_tokens=100, max_tokens=25)
    work_tokens = 100 + 4 * 25
    expected = 3.0 * 6.0 / work_tokens / 2.0**2
    assert index(Discipline.GCMU, ticket, policy_of(ttft_s=2.0, value=3.0)) == pytest.approx(
        expected
    )


def test_gcmu_looks_at_values_and_not_at_weights() -> None:
    light, heavy = policy_of(0.1), policy_of(9.0)
    assert index(Discipline.GCMU, head(), light) == index(Discipline.GCMU, head(), heavy)
    worthy = policy_of(0.1, value=2.0)
    assert index(Discipline.GCMU, head(), worthy) > index(Discipline.GCMU, head(), heavy)


def test_gcmu_takes_the_smaller_of_two_equally_old_heads_first() -> None:
    small, large = head(prompt_tokens=10), head(prompt_tokens=9000)
    assert index(Discipline.GCMU, small, policy_of()) > index(Discipline.GCMU, large, policy_of())


def test_edf_is_the_deadline_and_nothing_else() -> None:
    early, late = policy_of(0.1, ttft_s=1.0), policy_of(9.0, ttft_s=3.0)
    assert index(Discipline.EDF, head(1.0), early) == -(NOW_S - 1.0 + 1.0)
    assert index(Discipline.EDF, head(1.0), early) > index(Discipline.EDF, head(2.9), late)
    assert index(Discipline.EDF, head(1.0), early) < index(Discipline.EDF, head(3.1), late)


def test_strict_is_the_weight_whatever_the_age() -> None:
    assert index(Discipline.STRICT, head(0.0), policy_of(2.0)) == 2.0
    assert index(Discipline.STRICT, head(999.0), policy_of(2.0)) == 2.0


def test_cp_score_is_the_published_sum_with_the_age_added() -> None:
    ticket = head(7.0, prompt_tokens=4096)
    expected = 0.4 / (1.2 * 4096 + 120) + 0.3 * 0.25 + 0.2 * 0.5 + 0.1 * 7.0
    assert index(Discipline.CP_SCORE, ticket, policy_of(0.25)) == pytest.approx(expected)


def test_cp_score_lets_the_oldest_win_in_the_end() -> None:
    old, young = head(20.0, prompt_tokens=1), head(0.0, prompt_tokens=100_000)
    low, high = policy_of(0.001), policy_of(1.0)
    assert index(Discipline.CP_SCORE, old, low) > index(Discipline.CP_SCORE, young, high)


def test_wfq_is_the_service_that_a_class_would_have_had_with_its_head() -> None:
    account = Account(finish_tag=50.0)
    ticket = head(prompt_tokens=60, max_tokens=10)
    assert index(Discipline.WFQ, ticket, policy_of(2.0), account) == -(50.0 + (60 + 4 * 10) / 2.0)


def test_wfq_takes_no_work_for_a_request_that_was_charged_before() -> None:
    account = Account(finish_tag=50.0)
    resumed = head(prompt_tokens=60, dispatched_s=1.0)
    assert index(Discipline.WFQ, resumed, policy_of(2.0), account) == -50.0


@pytest.mark.parametrize("discipline", WEIGHED)
def test_a_larger_weight_is_more_urgent(discipline: Discipline) -> None:
    """Field failure 8: one direction, in every discipline that looks at weights."""
    heavy, light = policy_of(2.0), policy_of(1.0)
    assert index(discipline, head(), heavy) > index(discipline, head(), light)


@pytest.mark.parametrize("discipline", [Discipline.APQ, Discipline.GCMU, Discipline.CP_SCORE])
def test_a_class_of_tiny_weight_overtakes_by_waiting(discipline: Discipline) -> None:
    low, high = policy_of(0.01, value=0.01), policy_of(1.0, value=1.0)
    assert index(discipline, head(1.0), low) < index(discipline, head(1.0), high)
    assert index(discipline, head(101.0), low) > index(discipline, head(1.0), high)


@given(
    st.sampled_from(Discipline),
    st.floats(0, 1e4),
    st.floats(0, 1e4),
    st.integers(0, 10**6),
    st.floats(0.001, 1e3),
)
def test_no_index_falls_with_age(
    discipline: Discipline, age_s: float, more_s: float, prompt_tokens: int, weight: float
) -> None:
    policy = policy_of(weight, value=weight)
    younger, older = head(age_s, prompt_tokens), head(age_s + more_s, prompt_tokens)
    assert index(discipline, older, policy) >= index(discipline, younger, policy)


def test_expected_work_is_prompt_and_generation_as_the_control_plane_measures_it() -> None:
    assert RULE.generated_token_cost == GENERATED_TOKEN_COST
    account = Account()
    assert account.generation_tokens == RULE.prior_generation_tokens
    assert account.work_tokens(head(prompt_tokens=10)) == 10 + 4 * 64
    assert account.work_tokens(head(prompt_tokens=10, max_tokens=2)) == 10 + 4 * 2
    assert account.work_tokens(head(prompt_tokens=0, max_tokens=0)) == 1.0


def test_expected_generation_follows_what_is_seen() -> None:
    account = Account()
    for _ in range(4):
        account.learn(0)
    assert account.generation_tokens == pytest.approx(32.0)
    for _ in range(3000):
        account.learn(500)
    assert account.generation_tokens == pytest.approx(500.0, rel=0.01)


def test_a_preempted_request_is_never_late() -> None:
    assert is_late(head(50.0), policy_of(), NOW_S)
    assert not is_late(head(0.5), policy_of(), NOW_S)
    assert not is_late(head(50.0, dispatched_s=60.0), policy_of(), NOW_S)
