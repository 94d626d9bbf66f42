"""The fleet's own traffic in the simulator."""

from dataclasses import replace

import numpy as np
import pytest
from steering_networks import lived_history

from models.window import Signal, Window
from training.rehearsal.traffic import LEAST_SHARE, fitting, joined, own_traffic
from training.rehearsal.worlds import regime_worlds, replayed
from training.simulator.calibration import REFERENCE_ENGINE
from training.simulator.model import Fleet
from training.simulator.regimes import REGIMES
from training.simulator.traffic import REFERENCE
from training.simulator.workload import Workload

CLASSES = tuple(kind.task_class for kind in REFERENCE)
FLEET = Fleet(REFERENCE_ENGINE.engine)


@pytest.fixture(scope="module")
def lived() -> Window:
    return lived_history(600.0, 0.8)


def test_own_traffic_is_that_of_the_history(lived: Window) -> None:
    found = own_traffic([lived.between(0, 60), lived.between(60, 120)], CLASSES, FLEET.engine)
    assert tuple(one.task_class for one in found) == CLASSES
    for own, true in zip(found, REFERENCE, strict=True):
        assert own.share == pytest.approx(true.share, abs=0.03)
        assert own.work_tokens == pytest.approx(true.work_tokens, rel=0.2)


def test_a_silent_class_has_a_small_share_and_nan_reaches_nothing(lived: Window) -> None:
    signals = {name: values.copy() for name, values in lived.signals.items()}
    for values in signals.values():
        values[0] = np.nan
        values[1] = 0.0
    silent = replace(lived, signals=signals)
    found = own_traffic([silent], CLASSES, FLEET.engine)
    assert [one.share for one in found[:2]] == [LEAST_SHARE, LEAST_SHARE]
    assert all(np.isfinite(one.work_tokens) for one in found)


def test_replay_asks_as_often_as_the_history_and_differs_by_seed(lived: Window) -> None:
    stretches = [lived.between(0, 60), lived.between(60, 120)]
    worlds = replayed(stretches, CLASSES, FLEET, count=4, first_seed=5)
    workloads = [one.scenario().workload for one in worlds]
    for world, workload in zip(worlds, workloads, strict=True):
        arrived = world.stretch.signals[Signal.ARRIVALS_PER_S].sum() * world.stretch.step_s
        assert len(workload) == pytest.approx(arrived, abs=len(CLASSES))
    assert not np.array_equal(workloads[0].arrival_s, workloads[2].arrival_s)
    again = worlds[0].scenario().workload
    np.testing.assert_array_equal(again.arrival_s, workloads[0].arrival_s)
    future = worlds[0].scenario(1).workload
    assert not np.array_equal(future.arrival_s, workloads[0].arrival_s)


@pytest.mark.parametrize("regime", REGIMES)
def test_no_request_of_an_old_regime_is_too_long_for_a_small_engine(
    lived: Window, regime: str
) -> None:
    small = Fleet(replace(FLEET.engine, longest_tokens=400))
    traffic = own_traffic([lived], CLASSES, small.engine)
    for world in regime_worlds(regime, traffic, small, count=2, first_seed=1, duration_s=120.0):
        workload = world.scenario().workload
        assert (workload.prompt_tokens + workload.output_tokens).max() <= 400
        assert workload.classes == CLASSES


def test_a_short_stretch_is_lived_through_several_times(lived: Window) -> None:
    short = lived.between(0, 25)
    (world,) = replayed([short], CLASSES, FLEET, count=1, first_seed=1)
    assert world.stretch.steps == 60
    for name, values in world.stretch.signals.items():
        np.testing.assert_array_equal(values[:, 25:50], short.signals[name])
        np.testing.assert_array_equal(values[:, 50:], short.signals[name][:, :10])


def test_fitting_leaves_alone_what_fits() -> None:
    prompts, outputs = np.array([10, 500, 390]), np.array([5, 5, 50])
    workload = Workload(
        np.arange(3.0), np.zeros(3), prompts.astype(np.int32), outputs.astype(np.int32), CLASSES
    )
    fitted = fitting(workload, replace(FLEET.engine, longest_tokens=400))
    assert fitted.prompt_tokens.tolist() == [10, 399, 390]
    assert fitted.output_tokens.tolist() == [5, 1, 10]


def test_joined_windows_leave_the_time_between_them_out(lived: Window) -> None:
    whole = joined([lived.between(0, 10), lived.between(20, 35)])
    assert whole.steps == 25
    assert whole.end_unix_s == lived.between(0, 35).end_unix_s
