"""States are saved, restored and branched; candidates are evaluated on a common future."""

from pathlib import Path

import numpy as np
import pytest
from fleets import CLASSES, ENGINE, constant, fleets, seeds, weight_rows, workload_of, workloads
from hypothesis import given, settings
from hypothesis import strategies as st

from training.simulator.model import Discipline, EngineModel, Fleet
from training.simulator.rollout import Run, evaluate, simulate
from training.simulator.state import State
from training.simulator.workload import Workload

TIMES = ("dispatched_s", "first_token_s", "finished_s", "preemptions", "generated")


def assert_same(one: Run, other: Run) -> None:
    """In what happened to the requests of the one, and was measured."""
    known = slice(one.first, one.first + len(one.workload))
    for name in TIMES:
        whole = other.state.requests[name]
        own = one.state.requests[name]
        np.testing.assert_array_equal(own, whole[known] if len(whole) > len(own) else whole)
    np.testing.assert_array_equal(one.series, other.series[-len(one.series) :])


@settings(max_examples=60, deadline=None)
@given(seed=seeds, fleet=fleets, workload=workloads(), cut=st.integers(1, 11))
def test_a_run_in_two_parts_is_the_run(
    seed: int, fleet: Fleet, workload: Workload, cut: int
) -> None:
    weights = weight_rows(seed, 12, len(workload.classes))
    whole = simulate(fleet, workload, weights)
    begun = simulate(fleet, workload, weights[:cut])
    rest = simulate(fleet, workload, weights[cut:], begun.state)
    assert_same(rest, whole)
    assert_same(evaluate(fleet, workload, weights[None, cut:], begun.state)[0], whole)


def test_the_same_arguments_give_the_same_run() -> None:
    workload, weights = workload_of(500, 6.0, 3), constant([4.0, 2.0, 1.0], 20)
    first, second = (simulate(Fleet(ENGINE), workload, weights) for _ in range(2))
    for one, other in zip(first.state, second.state, strict=True):
        assert one.tobytes() == other.tobytes()
    assert first.series.tobytes() == second.series.tobytes()


def test_a_state_survives_the_disk(tmp_path: Path) -> None:
    workload, weights = workload_of(300, 8.0, 5), constant([4.0, 2.0, 1.0], 6)
    begun = simulate(Fleet(ENGINE), workload, weights)
    assert begun.state.live > 0
    begun.state.save(tmp_path / "state.npz")
    restored = State.load(tmp_path / "state.npz")
    assert_same(
        simulate(Fleet(ENGINE), workload, weights, restored),
        simulate(Fleet(ENGINE), workload, weights, begun.state),
    )


def test_a_state_of_another_version_is_refused(tmp_path: Path) -> None:
    state = State.initial(Fleet(ENGINE), requests=3, classes=3)
    state._replace(cursor=state.engines).save(tmp_path / "state.npz")
    with pytest.raises(ValueError, match="another version"):
        State.load(tmp_path / "state.npz")


def test_a_branch_leaves_the_state_as_it_was() -> None:
    workload, weights = workload_of(300, 8.0, 5), constant([4.0, 2.0, 1.0], 6)
    state = simulate(Fleet(ENGINE), workload, weights).state
    before = [array.tobytes() for array in state]
    simulate(Fleet(ENGINE), workload, weights, state)
    evaluate(Fleet(ENGINE), workload, weights[None], state)
    assert [array.tobytes() for array in state] == before


@pytest.mark.parametrize("discipline", [Discipline.APQ, Discipline.WFQ])
def test_candidates_come_out_the_same_on_one_thread_and_on_two(discipline: Discipline) -> None:
    fleet = Fleet(ENGINE, engines=2, discipline=discipline)
    workload = workload_of(800, 14.0, 11)
    state = simulate(fleet, workload, constant([1.0, 1.0, 1.0], 4)).state
    candidates = np.random.default_rng(2).uniform(0.1, 5.0, (16, 6, len(CLASSES)))
    one, two = (evaluate(fleet, workload, candidates, state, threads=n) for n in (1, 2))
    for first, second in zip(one, two, strict=True):
        assert first.series.tobytes() == second.series.tobytes()
        assert first.state.requests.tobytes() == second.state.requests.tobytes()
    assert len({run.series.tobytes() for run in one}) > 1
    for weights, run in zip(candidates, one, strict=True):
        assert_same(run, simulate(fleet, workload, weights, state))


def test_a_request_that_never_fits_is_refused() -> None:
    small = EngineModel(0.1, 0.0, 0.0, 0.0, slots=4, step_tokens=64, kv_blocks=2)
    with pytest.raises(ValueError, match="does not fit"):
        simulate(Fleet(small), workload_of(5, 1.0, 1), constant([1.0, 1.0, 1.0], 1))


@pytest.mark.parametrize("weights", [[1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, np.nan]])
def test_weights_that_are_none_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights must be"):
        simulate(Fleet(ENGINE), workload_of(5, 1.0, 1), constant(weights, 1))
