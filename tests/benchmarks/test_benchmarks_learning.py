"""The parts of the proof: where policies are compared, the policies, and the oracle."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.learning.feedback import Pid
from benchmarks.learning.oracle import OracleOptions, Sweep, clairvoyant
from benchmarks.learning.recorded import recorded_settings
from benchmarks.learning.served import Delayed, Served, Shuffled
from benchmarks.learning.settings import (
    FIRST_TRAINING_SEED,
    FLEET,
    REGIMES,
    SLOWER,
    Drawn,
    Setting,
    settings,
    traffic_with,
)
from benchmarks.learning.statics import SearchOptions, Trial, search
from benchmarks.learning.units import step_by_step
from models.bundle import Bundle
from models.classes import LatePolicy
from models.rule import rule_shares
from models.window import STEP_S, STEPS, Signal, Window
from training.closed_loop.controller import StaticController
from training.closed_loop.steer import steer
from training.regret.candidates import Float
from training.simulator.play import capacity_requests_per_s
from training.simulator.policies import value_shares
from training.simulator.regimes import draw_scenario

CROWD = Drawn("flash-crowd", LatePolicy.SERVE, 100.0)


def window_of(classes: int, end_s: float = 0.0, **signals: object) -> Window:
    """Of the first so many reference classes: nothing but what is given, [C, T] each."""
    shape = (classes, STEPS)
    filled = {
        signal: np.array(np.broadcast_to(np.asarray(signals.get(signal.value, 0.0)), shape), float)
        for signal in Signal
    }
    names = tuple(one.task_class.name for one in traffic_with(LatePolicy.SERVE)[:classes])
    return Window(end_unix_s=end_s, step_s=STEP_S, task_classes=names, signals=filled)


# --- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("regime", REGIMES)
def test_the_late_policy_changes_nothing_of_what_happens(regime: str) -> None:
    serve, demote = (Drawn(regime, late, 60.0).scenario(3) for late in LatePolicy)
    assert serve.workload.arrival_s.tolist() == demote.workload.arrival_s.tolist()
    assert serve.step_time == demote.step_time
    assert {one.late for one in serve.workload.classes} == {LatePolicy.SERVE}
    assert {one.late for one in demote.workload.classes} == {LatePolicy.DEMOTE}


@pytest.mark.parametrize("index", range(4))
def test_every_objective_can_be_met_by_its_class_alone(index: int) -> None:
    alone = traffic_with(LatePolicy.SERVE)[index : index + 1]
    scenario = draw_scenario(
        "stationary",
        alone,
        requests_per_s=0.2 * capacity_requests_per_s(FLEET, alone),
        duration_s=200.0,
        seed=1,
    )
    assert steer(scenario, FLEET, StaticController(np.ones(1))).loss.total == 0.0


def test_under_service_drift_the_engine_gets_twice_as_slow_for_good() -> None:
    setting = Drawn("service-drift", LatePolicy.SERVE, 400.0)
    courses = [setting.scenario(seed).step_time for seed in range(5)]
    assert {course.value for course in courses} == {(1.0, SLOWER)}
    assert len({course.at_s for course in courses}) == len(courses)


def trace_folder(folder: Path) -> Path:
    """Ten minutes in which each class asks three times a second, first for short answers."""
    for name in ("code.csv", "conv.csv"):
        lines = [
            f"2024-03-01 00:{at // 60:02d}:{at % 60:02d}.{third}00,800,{8 if at < 240 else 80}"
            for at in range(600)
            for third in (0, 3, 6)
        ]
        text = "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines])
        (folder / name).write_text(text)
    return folder


def test_recorded_pieces_for_tuning_are_not_those_for_comparing(tmp_path: Path) -> None:
    serve, demote = recorded_settings(trace_folder(tmp_path), 60.0)
    tuned, compared = (
        [serve.scenario(first + k) for k in range(8)] for first in (FIRST_TRAINING_SEED, 0)
    )
    assert {length for one in tuned for length in one.workload.output_tokens.tolist()} == {2}
    assert {length for one in compared for length in one.workload.output_tokens.tolist()} == {20}
    assert {one.late for one in demote.classes} == {LatePolicy.DEMOTE}
    same = demote.scenario(0).workload
    assert same.arrival_s.tolist() == compared[0].workload.arrival_s.tolist()


def test_without_the_traces_there_are_no_recorded_settings(tmp_path: Path) -> None:
    assert not recorded_settings(tmp_path, 60.0)
    assert not recorded_settings(tmp_path / "absent", 60.0)


# --- static weights ---------------------------------------------------------------------------


def bowl(group: list[Setting], log_shares: Float) -> Float:
    """Regime r loses least where class r has the most, by its own depth."""
    targets = 2.0 * np.eye(4)[: len(group)]  # [R, C]
    targets -= targets.mean(axis=1, keepdims=True)
    depth = np.array([1.0, 4.0, 1.0])[: len(group)]
    distance = ((log_shares[:, None] - targets) ** 2).sum(axis=-1)  # [K, R]
    return np.asarray(depth * distance)


def test_one_search_gives_weights_for_all_regimes_for_one_and_for_all_but_one() -> None:
    group = settings(60.0)[:3]
    options = SearchOptions(first=200, near=30, radii=(0.5, 0.2, 0.1))
    found = search(group, bowl, options, seed=0)  # type: ignore[arg-type]
    for regime, one in enumerate(found):
        assert np.argmax(one.own) == regime
        assert sum(one.own) == pytest.approx(1.0)
        assert one.elsewhere is not None
        assert np.argmax(one.elsewhere) != regime
    assert {np.argmax(one.mixed) for one in found} == {1}  # the deepest


def test_without_another_regime_nothing_is_tuned_elsewhere() -> None:
    (found,) = search(settings(60.0)[:1], bowl, SearchOptions(first=8, radii=()), seed=0)  # type: ignore[arg-type]
    assert found.elsewhere is None
    assert found.own == found.mixed


def test_a_trial_is_the_mean_loss_on_the_training_seeds() -> None:
    values = value_shares(CROWD.classes)
    (found,) = Trial(CROWD, (tuple(np.log(values).tolist()),), traces=2)()
    expected = [
        steer(CROWD.scenario(FIRST_TRAINING_SEED + k), FLEET, StaticController(values)).loss.total
        for k in range(2)
    ]
    assert found == pytest.approx(np.mean(expected))


# --- policies ---------------------------------------------------------------------------------


def test_without_a_model_the_rule_is_served_through_the_guardrails() -> None:
    scenario = CROWD.scenario(0)
    run = steer(scenario, FLEET, Served(scenario.workload.classes, None))
    before = np.vstack([value_shares(scenario.workload.classes), run.shares[:-1]])
    steps = np.abs(np.log(run.shares) - np.log(before)).max(axis=1)
    assert steps[0] == 0.0  # nothing is measured yet
    assert steps[1] == pytest.approx(0.2)
    assert np.allclose(run.shares[-1], rule_shares(run.windows[-1], CROWD.classes), rtol=0.1)


def test_an_untrained_model_is_served_as_the_rule() -> None:
    scenario = CROWD.scenario(1)
    rule, untrained = (
        steer(scenario, FLEET, Served(scenario.workload.classes, bundle)).shares
        for bundle in (None, Bundle.untrained())
    )
    assert untrained == pytest.approx(rule)


def test_a_delayed_view_is_that_of_some_ticks_ago() -> None:
    view = Delayed(2)
    shown = [view(window_of(1, end_s=float(tick))).end_unix_s for tick in range(5)]
    assert shown == [0.0, 0.0, 0.0, 1.0, 2.0]


def test_a_shuffled_view_holds_the_same_steps_of_all_classes_in_another_order() -> None:
    window = window_of(2, waiting=np.arange(2.0 * STEPS).reshape(2, STEPS))
    waiting = Shuffled(0)(window).signals[Signal.WAITING]
    assert waiting.tolist() != window.signals[Signal.WAITING].tolist()
    assert sorted(waiting[0]) == list(range(STEPS))
    assert np.all(waiting[1] - waiting[0] == STEPS)


def test_feedback_moves_weight_to_the_class_that_misses_more_and_not_without_an_error() -> None:
    classes = tuple(one.task_class for one in traffic_with(LatePolicy.SERVE)[:2])
    calm = window_of(2, finished_per_s=2.0)
    late = window_of(2, finished_per_s=2.0, violations_per_s=np.array([[0.0], [2.0]]))
    values = value_shares(classes)
    even, moved = Pid(2), Pid(2)
    ratios = [moved.weights(late, classes, tick) / values for tick in range(5)]
    assert np.ptp(even.weights(calm, classes, 0) / values) == pytest.approx(0.0, abs=1e-12)
    assert all(ratio[1] > ratio[0] for ratio in ratios)
    assert ratios[-1][1] > ratios[0][1]


def test_the_step_of_a_log_share_is_bounded() -> None:
    shares = step_by_step(np.array([1e6, 1.0]), np.array([0.5, 0.5]))
    assert np.abs(np.log(shares / 0.5)).max() == pytest.approx(0.2)


# --- oracle -----------------------------------------------------------------------------------


def test_the_oracle_is_never_worse_than_any_path_that_it_is_given() -> None:
    options = OracleOptions(sweeps=(Sweep(4, 6),), candidates=10)
    for seed in range(2):
        scenario = replace(CROWD, duration_s=80.0).scenario(seed)
        runs = [
            steer(scenario, FLEET, StaticController(np.array(weights)))
            for weights in ([1.0, 1.0, 1.0, 1.0], [8.0, 1.0, 1.0, 1.0], [50.0, 5.0, 1.0, 1.0])
        ]
        found = clairvoyant(scenario, FLEET, [run.shares for run in runs], options, seed=0)
        assert found.loss.total <= min(run.loss.total for run in runs)


def test_the_oracle_uses_what_it_knows_of_the_future() -> None:
    scenario = CROWD.scenario(1)
    static = steer(scenario, FLEET, StaticController(value_shares(scenario.workload.classes)))
    found = clairvoyant(scenario, FLEET, [static.shares], OracleOptions(), seed=0)
    assert static.loss.total > 0.0
    assert found.loss.total < 0.9 * static.loss.total
