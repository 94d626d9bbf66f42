import numpy as np
import pytest
from rich.console import Console

from benchmarks.client import Answer, Replay
from benchmarks.plan import Arrival
from benchmarks.sim.arrivals import as_arrivals, as_workload
from benchmarks.sim.comparison import latency_rows, mean_errors, rank_correlation, worst_errors
from benchmarks.sim.fidelity import policy_snapshot
from benchmarks.sim.findings import FOLLOWED, SWEPT, Fidelity, Pair, Side, value_ratio
from benchmarks.sim.report import fidelity_tables
from controlplane.wire import snapshot_to_wire
from dataplane.subscriber.messages import decode_snapshot
from models.classes import Slo, TaskClass
from training.simulator.calibration import REFERENCE_ENGINE
from training.simulator.policies import POLICIES
from training.simulator.traffic import REFERENCE, simultaneous

CLASSES = (TaskClass("a", Slo(ttft_s=1.0), value=3.0), TaskClass("b", Slo(ttft_s=1.0)))


def answers(task_class: str, seconds: np.ndarray) -> list[Answer]:
    arrival = Arrival(0.0, task_class, 10, 5)
    return [Answer(arrival, float(value), float(2 * value), 5) for value in seconds]


def test_errors_are_relative_to_the_real_run_by_class_and_percentile() -> None:
    real = answers("a", np.linspace(1, 2, 101)) + answers("b", np.linspace(1, 2, 101))
    simulated = answers("a", np.linspace(1, 2, 101) * 1.2) + answers("b", np.linspace(1, 2, 101))
    rows = latency_rows(0.8, real, simulated)
    assert len(rows) == 2 * 2 * 3
    first = rows[0]
    assert (first.task_class, first.latency, first.percentile) == ("a", "ttft", 50)
    assert (first.real_s, first.simulated_s) == pytest.approx((1.5, 1.8))
    assert mean_errors(rows)["e2e_p90_err"] == pytest.approx(0.1)
    assert worst_errors(rows)["ttft_p99_err"] == pytest.approx(0.2)


def test_what_nobody_measured_is_unknown() -> None:
    lost = [Answer(Arrival(0.0, "a", 10, 5), None, None, 0, "gone")]
    assert latency_rows(0.8, lost, answers("a", np.ones(3))) == []
    assert mean_errors([])["ttft_p50_err"] is None
    assert worst_errors([])["ttft_p50_err"] is None


def test_rankings_that_agree_have_tau_one_and_opposite_ones_minus_one() -> None:
    real = {"x": 0.1, "y": 0.5, "z": 0.9}
    assert rank_correlation(real, {"z": 0.8, "x": 0.2, "y": 0.3}) == pytest.approx(1.0)
    assert rank_correlation(real, {"x": 0.9, "y": 0.5, "z": 0.1}) == pytest.approx(-1.0)
    assert rank_correlation(real, {"x": 0.5, "y": 0.5, "z": 0.5}) is None


def test_the_value_ratio_counts_values_and_not_requests() -> None:
    run = Replay((*answers("a", np.array([0.5, 2.0])), *answers("b", np.array([0.5, 0.5]))), 7.0)
    assert value_ratio(run, CLASSES) == pytest.approx((3 + 1 + 1) / 8)


def test_a_workload_survives_being_a_plan() -> None:
    load = simultaneous(REFERENCE, 50, seed=1)
    again = as_workload(as_arrivals(load), load.classes)
    for name in ("arrival_s", "class_index", "prompt_tokens", "output_tokens"):
        assert np.array_equal(getattr(load, name), getattr(again, name))


@pytest.mark.parametrize("name", POLICIES)
def test_an_engine_takes_the_snapshot_of_every_policy(name: str) -> None:
    classes = [kind.task_class for kind in REFERENCE]
    message = snapshot_to_wire(policy_snapshot(POLICIES[name], classes))
    message.version = 1
    table = decode_snapshot(message, received_at_s=0.0)
    assert table.discipline.value == POLICIES[name].discipline.value
    assert sum(policy.weight for policy in table.policies.values()) == pytest.approx(1.0)


def pair(real: np.ndarray, simulated: np.ndarray, *, slowness: float) -> Pair:
    """One class; followed, the simulation is right."""
    load = simultaneous(REFERENCE, 2, seed=1)
    truth = Replay(tuple(answers("a", real)), span_s=float(real.max()))
    guess = Replay(tuple(answers("a", simulated)), span_s=float(simulated.max()))
    sides = {SWEPT: Side(0.08, guess), FOLLOWED: Side(0.04, truth)}
    return Pair(load, truth, slowness, sides)


def test_results_have_the_keys_that_programs_read_and_a_table_beside_the_goals() -> None:
    right, wrong = np.linspace(0.1, 2, 101), np.linspace(0.1, 2, 101) * 1.5
    late = np.linspace(1.5, 3, 101)
    found = Fidelity(
        calibration=REFERENCE_ENGINE,
        capacity_requests_per_s=4.0,
        classes=CLASSES,
        loads={0.6: pair(right, wrong, slowness=0.7)},
        saturated=pair(right, wrong, slowness=0.7),
        policies={
            "fcfs": pair(late, right, slowness=1.0),
            "apq": pair(right, late, slowness=1.0),
        },
    )
    document = found.as_json()
    assert document["step_mape"] == pytest.approx(0.08)
    assert document["ttft_p50_err"] == pytest.approx(0.5)
    assert document["throughput_err"] == pytest.approx(1 / 3)
    assert document["kendall_tau"] == pytest.approx(-1.0)
    assert {"ttft_p90_err", "ttft_p99_err", "e2e_p50_err", "e2e_p90_err"} <= document.keys()
    followed = found.errors(FOLLOWED).as_json()
    assert document["followed"] == followed
    assert followed["kendall_tau"] == pytest.approx(1.0)
    assert followed["ttft_p50_err"] == followed["throughput_err"] == 0.0
    console = Console(width=120)
    with console.capture() as capture:
        console.print(fidelity_tables(found))
    for text in ("8.0%", "4.0%", "50.0%", "33.3%", "<= 10%", ">= 0.8", "-1.00", "1.00x", "apq"):
        assert text in capture.get()
