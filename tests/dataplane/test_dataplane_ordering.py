import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.ordering import apq, fcfs, running_rank
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, LatePolicy, Slo

NOW_S = 100.0


def head(age_s: float, place: int = 1, *, dispatched: bool = False) -> Ticket:
    return Ticket(
        f"r{place}",
        "k",
        arrived_s=NOW_S - age_s,
        place=place,
        dispatched_s=NOW_S - age_s if dispatched else None,
    )


def policy(weight: float = 1.0, ttft_s: float = 1.0, **fields: object) -> ClassPolicy:
    return ClassPolicy("k", weight, 1.0, Slo(ttft_s), **fields)  # type: ignore[arg-type] # as given


def test_the_index_is_weight_times_age_over_objective() -> None:
    assert apq(head(6.0), policy(weight=3.0, ttft_s=2.0), NOW_S)[1] == pytest.approx(9.0)


def test_a_larger_weight_is_more_urgent() -> None:
    assert apq(head(1.0), policy(weight=2.0), NOW_S) > apq(head(1.0), policy(weight=1.0), NOW_S)


def test_a_class_of_tiny_weight_overtakes_by_waiting() -> None:
    urgent = apq(head(1.0), policy(weight=100.0), NOW_S)
    assert apq(head(99.0), policy(weight=1.0), NOW_S) < urgent
    assert apq(head(101.0 - 1e-9), policy(weight=1.0), NOW_S) > urgent


def test_equal_indices_go_by_place() -> None:
    earlier, later = head(1.0, place=1), head(1.0, place=2)
    assert apq(earlier, policy(), NOW_S) > apq(later, policy(), NOW_S)


def test_a_demoted_late_head_goes_after_all_that_can_still_make_it() -> None:
    late = apq(head(50.0), policy(weight=1e6, late=LatePolicy.DEMOTE), NOW_S)
    assert late < apq(head(0.0), policy(weight=1e-6), NOW_S)


def test_a_late_head_keeps_its_place_under_serve() -> None:
    assert apq(head(50.0), policy(), NOW_S) > apq(head(0.5), policy(), NOW_S)


def test_a_preempted_head_is_not_demoted() -> None:
    demote = policy(late=LatePolicy.DEMOTE)
    assert apq(head(50.0, dispatched=True), demote, NOW_S) > apq(head(0.9), demote, NOW_S)


def test_a_bounded_wait_lifts_a_demoted_head_above_everything() -> None:
    bounded = policy(weight=1e-6, late=LatePolicy.DEMOTE, max_wait_s=20.0)
    assert apq(head(20.1), bounded, NOW_S) > apq(head(19.9), policy(weight=1e6), NOW_S)
    assert apq(head(19.9), bounded, NOW_S) < apq(head(0.0), policy(weight=1e-6), NOW_S)


def test_among_overdue_heads_the_most_overdue_leads() -> None:
    patient, strict = policy(weight=9.0, max_wait_s=30.0), policy(weight=0.1, max_wait_s=10.0)
    assert apq(head(15.0), strict, NOW_S) > apq(head(31.0), patient, NOW_S)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1e6)), min_size=1, max_size=9))
def test_fcfs_looks_at_places_only(heads: list[tuple[int, float]]) -> None:
    tickets = [head(age_s, place) for place, age_s in heads]
    chosen = max(tickets, key=lambda ticket: fcfs(ticket, policy(), NOW_S))
    assert chosen.place == min(place for place, _ in heads)


def test_while_memory_suffices_decoding_comes_before_prompts_then_weight_decides() -> None:
    ranks = [
        running_rank(1.0, prefilling=False, memory_short=False),
        running_rank(9.0, prefilling=True, memory_short=False),
        running_rank(1.0, prefilling=True, memory_short=False),
    ]
    assert ranks == sorted(ranks)


def test_when_memory_runs_short_the_least_weight_is_the_victim() -> None:
    ranks = [
        running_rank(9.0, prefilling=True, memory_short=True),
        running_rank(1.0, prefilling=False, memory_short=True),
    ]
    assert ranks == sorted(ranks)
