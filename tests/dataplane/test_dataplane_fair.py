"""Weighted fair queueing over time: shares, idleness, and who pays for what."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shelf import Shelf, policy_of, table_of

from dataplane.weights import Discipline, WeightTable

LIKELY_TOKENS = 4 * 64
"""Work of the generation that is expected before anything is known."""


def weights_of(**weights: float) -> WeightTable:
    return table_of(Discipline.WFQ, {name: policy_of(weight) for name, weight in weights.items()})


def fill(shelf: Shelf, task_class: str, count: int, prompt_tokens: int) -> None:
    before = len(shelf.tickets)
    for index in range(before, before + count):
        shelf.add(f"{task_class}{index}", task_class, 0.0, prompt_tokens)


def dispatch(shelf: Shelf, weights: WeightTable, count: int) -> list[str]:
    """The classes of the next so many requests, which get onto the engine."""
    shelf.queue.begin_step(weights, 1.0)
    request_ids = [shelf.pop() for _ in range(count)]
    shelf.queue.end_step()
    for request_id in request_ids:
        shelf.tickets[request_id].dispatched_s = 1.0
    return [shelf.tickets[request_id].task_class for request_id in request_ids]


@settings(max_examples=40, deadline=None)
@given(
    weights=st.tuples(*[st.floats(0.1, 10.0)] * 3),
    prompt_tokens=st.tuples(*[st.integers(0, 5000)] * 3),
)
def test_classes_that_always_wait_share_tokens_by_weight_within_a_request(
    weights: tuple[float, float, float], prompt_tokens: tuple[int, int, int]
) -> None:
    shelf, names = Shelf(), "abc"
    for name, tokens in zip(names, prompt_tokens, strict=True):
        fill(shelf, name, 60, tokens)
    served = Counter(dispatch(shelf, weights_of(**dict(zip(names, weights, strict=True))), 60))
    works = [tokens + LIKELY_TOKENS for tokens in prompt_tokens]
    shares = [
        served[name] * work / weight
        for name, work, weight in zip(names, works, weights, strict=True)
    ]
    largest = max(work / weight for work, weight in zip(works, weights, strict=True))
    assert max(shares) - min(shares) <= largest * (1 + 1e-9)


def test_an_idle_class_has_no_credit_and_a_busy_one_no_debt() -> None:
    shelf, weights = Shelf(), weights_of(busy=1.0, idle=1.0)
    fill(shelf, "busy", 200, 100)
    dispatch(shelf, weights, 100)
    fill(shelf, "idle", 50, 100)
    assert Counter(dispatch(shelf, weights, 20)) == {"busy": 10, "idle": 10}


@pytest.mark.parametrize("scale", [0.001, 1000.0])
def test_weights_at_another_scale_change_nothing_for_what_runs_and_waits(scale: float) -> None:
    """Only ratios of weights matter, also between what was charged and what is put right."""
    orders = []
    for later in (1.0, scale):
        shelf = Shelf()
        fill(shelf, "a", 100, 100)
        fill(shelf, "b", 100, 100)
        dispatch(shelf, weights_of(a=1.0, b=2.0), 9)
        running = [each for each in shelf.tickets.values() if each.dispatched_s is not None]
        after = weights_of(a=later, b=2.0 * later)
        order = dispatch(shelf, after, 5)
        for ticket in running:  # shorter than expected, and longer
            ticket.generated_tokens = 8 if ticket.task_class == "a" else 90
            shelf.queue.ended(ticket)
        orders.append(order + dispatch(shelf, after, 60))
    assert orders[0] == orders[1]


def test_a_class_that_grew_light_does_not_wait_for_its_old_weight() -> None:
    """What it was served is so many tokens, not so many times its new weight."""
    shelf = Shelf()
    fill(shelf, "a", 100, 100)
    fill(shelf, "b", 100, 100)
    dispatch(shelf, weights_of(a=1.0, b=1000.0), 40)
    assert Counter(dispatch(shelf, weights_of(a=1.0, b=1.0), 20))["a"] >= 9


def test_a_class_that_the_gate_held_back_has_no_credit() -> None:
    shelf, weights = Shelf(), weights_of(open=1.0, held=1.0)
    fill(shelf, "open", 100, 100)
    fill(shelf, "held", 100, 100)
    shelf.queue.begin_step(weights, 1.0, lambda ticket, _policy: ticket.task_class == "open")
    assert {shelf.pop()[:4] for _ in range(50)} == {"open"}
    shelf.queue.end_step()
    assert Counter(dispatch(shelf, weights, 20)) == {"open": 10, "held": 10}


def test_what_other_disciplines_served_is_owed_to_nobody() -> None:
    shelf = Shelf()
    fill(shelf, "a", 100, 100)
    fill(shelf, "b", 100, 100)
    weights = weights_of(a=1.0, b=1.0)
    dispatch(shelf, weights, 1)
    strict = table_of(Discipline.STRICT, {"a": policy_of(9.0), "b": policy_of(1.0)})
    assert set(dispatch(shelf, strict, 50)) == {"a"}
    assert Counter(dispatch(shelf, weights, 20)) == {"a": 10, "b": 10}


def test_a_skipped_request_costs_its_class_nothing() -> None:
    shelf, weights = Shelf(), weights_of(a=1.0, b=1.0)
    fill(shelf, "a", 20, 100)
    fill(shelf, "b", 20, 100)
    for _ in range(10):
        shelf.queue.begin_step(weights, 1.0)
        shelf.queue.prepend_requests([shelf.queue.pop_request()])
        shelf.queue.end_step()
    assert Counter(dispatch(shelf, weights, 20)) == {"a": 10, "b": 10}


def test_a_resumed_request_is_not_charged_again() -> None:
    shelf, weights = Shelf(), weights_of(a=1.0, b=1.0)
    fill(shelf, "a", 20, 100)
    fill(shelf, "b", 20, 100)
    assert dispatch(shelf, weights, 2) == ["a", "b"]
    for _ in range(5):
        shelf.queue.prepend_request(shelf.requests["a0"])
        assert dispatch(shelf, weights, 1) == ["a"]
    assert Counter(dispatch(shelf, weights, 20)) == {"a": 10, "b": 10}


@pytest.mark.parametrize(("generated_tokens", "first"), [(0, "a"), (5000, "b")])
def test_the_end_of_a_request_puts_right_what_its_class_was_charged(
    generated_tokens: int, first: str
) -> None:
    shelf, weights = Shelf(), weights_of(a=1.0, b=1.0)
    fill(shelf, "a", 20, 100)
    fill(shelf, "b", 20, 100)
    assert dispatch(shelf, weights, 2) == ["a", "b"]
    shelf.queue.begin_step(weights, 1.0)
    assert bool(shelf.queue)
    shelf.queue.end_step()
    shelf.tickets["a0"].generated_tokens = generated_tokens
    shelf.queue.ended(shelf.tickets["a0"])
    assert set(dispatch(shelf, weights, 1)) == {first}


def test_what_is_served_out_of_turn_puts_no_newcomer_behind() -> None:
    shelf, weights = Shelf(), weights_of(pinned=1.0, waiting=1.0, new=1.0)
    fill(shelf, "pinned", 50, 100)
    fill(shelf, "waiting", 50, 100)
    shelf.queue.begin_step(weights, 1.0)
    for index in range(10):
        shelf.queue.pin(f"pinned{index}")
        assert shelf.pop() == f"pinned{index}"
    shelf.queue.end_step()
    fill(shelf, "new", 50, 100)
    assert Counter(dispatch(shelf, weights, 10)) == {"waiting": 5, "new": 5}
