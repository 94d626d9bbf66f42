from hypothesis import given
from hypothesis import strategies as st

from dataplane.steps import StepLoad, StepLog, TimedStep

LOAD = StepLoad(prefill_tokens=10, decoding=3, kv_tokens=100)


def test_a_step_lasts_from_its_scheduling_to_its_result() -> None:
    log, output = StepLog(), object()
    log.scheduled(output, LOAD, 10.0)
    assert log.ended(output, 10.5) == TimedStep(LOAD, 0.5)


def test_a_step_scheduled_ahead_starts_when_the_one_before_it_ends() -> None:
    log, first, second = StepLog(), object(), object()
    log.scheduled(first, LOAD, 10.0)
    log.scheduled(second, LOAD, 10.1)
    log.ended(first, 11.0)
    timed = log.ended(second, 11.5)
    assert timed is not None
    assert timed.elapsed_s == 0.5


def test_idle_time_belongs_to_no_step() -> None:
    log, first, second = StepLog(), object(), object()
    log.scheduled(first, LOAD, 10.0)
    log.ended(first, 11.0)
    log.scheduled(second, LOAD, 50.0)
    timed = log.ended(second, 50.25)
    assert timed is not None
    assert timed.elapsed_s == 0.25


def test_a_result_of_no_known_step_has_no_time() -> None:
    assert StepLog().ended(object(), 1.0) is None


def test_a_step_whose_result_never_comes_is_passed_over() -> None:
    log, lost, second = StepLog(), object(), object()
    log.scheduled(lost, LOAD, 10.0)
    log.scheduled(second, LOAD, 11.0)
    timed = log.ended(second, 11.5)
    assert timed is not None
    assert timed.elapsed_s == 0.5
    assert log.ended(lost, 12.0) is None


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3)), max_size=40))
def test_steps_never_overlap(events: list[tuple[float, int]]) -> None:
    """Whatever the interleaving, the times of the steps fit into the time that passed."""
    log, now_s, queued, total_s = StepLog(), 0.0, [], 0.0
    for passed_s, kind in events:
        now_s += passed_s
        if kind and queued:
            timed = log.ended(queued.pop(0), now_s)
            assert timed is not None
            total_s += timed.elapsed_s
        else:
            queued.append(object())
            log.scheduled(queued[-1], LOAD, now_s)
    assert total_s <= now_s + 1e-9
