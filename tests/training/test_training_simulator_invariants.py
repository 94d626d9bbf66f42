"""What holds in every run, whatever the fleet and the workload."""

import numpy as np
import pytest
from fleets import ENGINE, constant, fleets, seeds, weight_rows, workload_of, workloads
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.classes import Slo, TaskClass
from training.simulator.model import Discipline, EngineModel, Fleet, Preemption
from training.simulator.result import Outcomes
from training.simulator.rollout import Run, simulate
from training.simulator.scene import Measurement
from training.simulator.state import State
from training.simulator.workload import Workload

LONE = (TaskClass("only", Slo(ttft_s=5.0)),)
PAIR = (TaskClass("one", Slo(ttft_s=5.0)), TaskClass("other", Slo(ttft_s=5.0)))


def live_requests(state: State) -> list[int]:
    """Where each live request is found, as often as it is."""
    found = []
    for e in range(len(state.engines)):
        found += state.slots["request"][e, : state.engines["running"][e]].tolist()
        for front in state.lanes["first"][e].ravel().tolist():
            request = front
            while request >= 0:
                found.append(request)
                request = int(state.requests["behind"][request])
    return found


@settings(max_examples=150, deadline=None)
@given(seed=seeds, fleet=fleets, workload=workloads(), ticks=st.integers(1, 8))
def test_no_request_token_or_block_is_lost_or_there_twice(
    seed: int, fleet: Fleet, workload: Workload, ticks: int
) -> None:
    run = simulate(fleet, workload, weight_rows(seed, ticks, len(workload.classes)))
    state, requests, totals = run.state, run.state.requests, run.series.sum(axis=(0, 1))
    arrived = int(state.cursor["arrival"][0])
    finished = np.flatnonzero(~np.isnan(requests["finished_s"]))
    assert sorted([*finished, *live_requests(state)]) == list(range(arrived))
    assert arrived == (workload.arrival_s < ticks * fleet.tick_s).sum() == totals[0]
    assert totals[Measurement.FINISHED] == len(finished)
    assert totals[Measurement.PROMPT_TOKENS] == workload.prompt_tokens[:arrived].sum()
    assert totals[Measurement.GENERATED_TOKENS] == requests["generated"].sum()
    assert (requests["generated"][finished] == workload.output_tokens[finished]).all()
    assert totals[Measurement.PREEMPTIONS] == requests["preemptions"].sum()
    held = requests["blocks"].sum() + state.engines["free_blocks"].sum()
    assert held == fleet.engines * fleet.engine.kv_blocks
    assert (state.engines["free_blocks"] >= 0).all()
    gauges = run.series[-1].sum(axis=0)
    assert gauges[Measurement.WAITING] + gauges[Measurement.RUNNING] == arrived - len(finished)
    assert state.live == arrived - len(finished)


@settings(max_examples=100, deadline=None)
@given(seed=seeds, fleet=fleets, workload=workloads(), ticks=st.integers(1, 8))
def test_an_engine_is_idle_only_when_it_has_no_request(
    seed: int, fleet: Fleet, workload: Workload, ticks: int
) -> None:
    state = simulate(fleet, workload, weight_rows(seed, ticks, len(workload.classes))).state
    idle = np.isinf(state.engines["ready_s"])
    assert (idle == (state.engines["waiting"] + state.engines["running"] == 0)).all()


@settings(max_examples=50, deadline=None)
@given(seed=seeds, fleet=fleets, workload=workloads())
def test_all_is_served_in_the_end(seed: int, fleet: Fleet, workload: Workload) -> None:
    weights = weight_rows(seed, 1, len(workload.classes))
    run = simulate(fleet, workload, np.repeat(weights, 4000, axis=0))
    assert not np.isnan(run.state.requests["finished_s"]).any()


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60)), min_size=1, max_size=40),
    slots=st.integers(1, 12),
)
def test_more_slots_finish_no_request_later_where_steps_take_equally_long(
    lengths: list[tuple[int, int]], slots: int
) -> None:
    prompts, outputs = zip(*lengths, strict=True)
    workload = Workload(
        arrival_s=np.zeros(len(lengths)),
        class_index=np.zeros(len(lengths), dtype=np.int32),
        prompt_tokens=np.array(prompts, dtype=np.int32),
        output_tokens=np.array(outputs, dtype=np.int32),
        classes=LONE,
    )
    few, more = (_even_engine(slots=count) for count in (slots, slots + 1))
    assert (_finished_s(more, workload) <= _finished_s(few, workload)).all()


def test_faster_steps_complete_a_workload_earlier() -> None:
    for seed in range(10):
        workload = workload_of(300, 6.0, seed, LONE)
        slow, fast = (
            EngineModel(
                base_s=0.02 * factor,
                prefill_s_per_token=1e-4 * factor,
                decode_s_per_sequence=1e-3 * factor,
                kv_s_per_token=1e-6 * factor,
                slots=8,
                step_tokens=256,
                kv_blocks=1000,
            )
            for factor in (1.0, 0.8)
        )
        assert _finished_s(fast, workload).sum() < _finished_s(slow, workload).sum()


@pytest.mark.parametrize(
    ("preemption", "least_deviations"),
    # Preempted requests waited before they were, so their class gains less from weight.
    [(None, 2.0), (Preemption(), -2.0)],
)
def test_a_larger_weight_gives_its_class_no_larger_mean_queue_time(
    preemption: Preemption | None, least_deviations: float
) -> None:
    """On common random numbers, over twenty workloads near saturation."""
    ladder = [0.25, 0.5, 1.0, 2.0, 4.0]
    fleet = Fleet(ENGINE, preemption=preemption)
    means_s = np.array(
        [
            [_mean_queue_s(fleet, workload_of(400, 5.5, seed, PAIR), weight) for weight in ladder]
            for seed in range(20)
        ]
    )  # [seeds, weights]
    gains_s = -np.diff(means_s, axis=1)
    standard_error_s = gains_s.std(axis=0, ddof=1) / np.sqrt(len(gains_s))
    assert (gains_s.mean(axis=0) > least_deviations * standard_error_s).all()


def test_outcomes_are_what_a_client_sees() -> None:
    """One request alone: a step for the prompt, and one for each further token."""
    engine = EngineModel(
        base_s=0.1,
        prefill_s_per_token=0.001,
        decode_s_per_sequence=0.01,
        kv_s_per_token=0.0,
        slots=4,
        step_tokens=64,
        kv_blocks=100,
        client_overhead_s=0.05,
    )
    workload = Workload(
        arrival_s=np.array([1.0]),
        class_index=np.array([0], dtype=np.int32),
        prompt_tokens=np.array([100], dtype=np.int32),
        output_tokens=np.array([3], dtype=np.int32),
        classes=LONE,
    )
    run = simulate(Fleet(engine), workload, constant([1.0], 2))
    outcomes = Outcomes.of(run, engine)
    assert outcomes.queue_s.tolist() == [0.0]
    np.testing.assert_allclose(outcomes.ttft_s, [0.164 + 0.136 + 0.05])
    np.testing.assert_allclose(outcomes.tpot_s, [0.11])
    np.testing.assert_allclose(outcomes.e2e_s, [0.3 + 2 * 0.11 + 0.05])
    assert outcomes.met.tolist() == outcomes.finished.tolist() == [True]
    measured = run.series[:, 0]
    assert measured[:, Measurement.ARRIVED].tolist() == [1.0, 0.0]
    np.testing.assert_allclose(measured[0, Measurement.TTFT_SUM_S], 0.3)


def test_what_has_not_come_yet_is_unknown() -> None:
    workload = workload_of(50, 20.0, 1)
    run = simulate(Fleet(ENGINE), workload, constant([1.0, 1.0, 1.0], 1))
    outcomes = Outcomes.of(run, ENGINE)
    assert 0 < outcomes.finished.sum() < len(workload)
    assert np.isnan(outcomes.e2e_s[~outcomes.finished]).all()
    assert not outcomes.met[~outcomes.finished].any()
    assert not np.isnan(outcomes.ttft_s[outcomes.finished]).any()


def _even_engine(slots: int) -> EngineModel:
    return EngineModel(
        base_s=0.05,
        prefill_s_per_token=0.0,
        decode_s_per_sequence=0.0,
        kv_s_per_token=0.0,
        slots=slots,
        step_tokens=4096,
        kv_blocks=10_000,
    )


def _drained(fleet: Fleet, workload: Workload, weights: list[float]) -> Run:
    run = simulate(fleet, workload, constant(weights, 200))
    assert not np.isnan(run.state.requests["finished_s"]).any()
    return run


def _finished_s(engine: EngineModel, workload: Workload) -> NDArray[np.float64]:
    finished_s: NDArray[np.float64] = np.asarray(
        _drained(Fleet(engine, discipline=Discipline.FCFS), workload, [1.0]).state.requests[
            "finished_s"
        ]
    )
    return finished_s


def _mean_queue_s(fleet: Fleet, workload: Workload, weight: float) -> float:
    run = _drained(fleet, workload, [weight, 1.0])
    return float(Outcomes.of(run, fleet.engine).queue_s[workload.class_index == 0].mean())
