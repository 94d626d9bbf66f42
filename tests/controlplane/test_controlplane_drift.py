"""A model that no longer fits: found, and kept apart from noise and from getting better."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.drift import Drift, DriftMonitor
from controlplane.drift.detectors import RECENT, RECOVERED_AFTER, InputWatch, ResidualWatch
from controlplane.drift.monitor import residuals_of
from controlplane.forecaster import Forecast
from controlplane.snapshot import Mode
from models.features import FEATURE_NAMES
from models.window import STEP_S, STEPS, Signal, Window

NAMES = ("vip", "batch")


def _window(end_unix_s: float, late: tuple[float, float]) -> Window:
    """100 requests of each class a step, of which so many are late."""
    signals = {signal: np.zeros((2, STEPS)) for signal in Signal}
    signals[Signal.FINISHED_PER_S][:] = 100 / STEP_S
    signals[Signal.VIOLATIONS_PER_S][:] = np.array(late)[:, None] * 100 / STEP_S
    return Window(end_unix_s, STEP_S, NAMES, signals)


def _forecast(
    end_unix_s: float,
    late: tuple[float, float],
    expected: tuple[float, float] | None = (0.1, 0.1),
    version: str = "3",
    waiting: float = 0.0,
) -> Forecast:
    features = np.zeros((2, len(FEATURE_NAMES)))
    features[:, FEATURE_NAMES.index("log1p_waiting")] = waiting
    return Forecast(
        mode=Mode.LEARNED,
        reason="champion 3",
        wanted=np.array([0.6, 0.4]),
        rule_shares=np.array([0.5, 0.5]),
        residuals=np.zeros(2),
        features=features,
        feature_names=FEATURE_NAMES,
        unfamiliarity=np.zeros(2),
        violation=None if expected is None else np.array(expected),
        model_version=version,
        window=_window(end_unix_s, late),
    )


def _run(monitor: DriftMonitor, ticks: int, late: float, start: int = 0) -> list[Drift]:
    """Ticks in which `batch` is as expected and `vip` late in so many cases, give or take."""
    random = Random(start)
    return [
        monitor.observe(
            _forecast(STEP_S * (start + tick), (max(0.0, random.gauss(late, 0.05)), 0.1))
        )
        for tick in range(ticks)
    ]


def test_residual_is_expected_minus_what_came_in_that_very_step() -> None:
    window = _window(1000.0, (0.2, 0.0))
    window.signals[Signal.VIOLATIONS_PER_S][0, -2] = 80 / STEP_S
    window.signals[Signal.FINISHED_PER_S][1, -2] = 0.0
    residuals = residuals_of(np.array([0.5, 0.5]), 995.0, window)
    assert residuals[0] == pytest.approx(0.5 - 80.1 / 102)  # shrunk toward the prior
    assert np.isnan(residuals[1]), "nothing finished, so the step says nothing"
    assert np.isnan(residuals_of(np.array([0.5, 0.5]), 1005.0, window)).all()
    assert np.isnan(residuals_of(np.array([0.5, 0.5]), 900.0, window)).all()


def test_failure_13_one_late_request_is_no_certain_violation_and_none_is_no_sample() -> None:
    window = _window(1000.0, (0.0, 0.0))
    window.signals[Signal.FINISHED_PER_S][:, -1] = np.array([1.0, 0.0]) / STEP_S
    window.signals[Signal.VIOLATIONS_PER_S][0, -1] = 1 / STEP_S
    residuals = residuals_of(np.array([0.1, 0.1]), 1000.0, window)
    assert -0.5 < residuals[0] < 0.0
    assert np.isnan(residuals[1])


def test_failure_17_a_class_that_only_waits_counts_as_violating() -> None:
    window = _window(1000.0, (0.0, 0.0))
    window.signals[Signal.FINISHED_PER_S][0, -1] = 0.0
    window.signals[Signal.WAITING_PAST_SLO][0, -1] = 50.0
    residuals = residuals_of(np.array([0.1, 0.1]), 1000.0, window)
    assert residuals[0] < -0.8


def test_drift_is_found_within_minutes_and_names_the_class_and_the_detector() -> None:
    monitor = DriftMonitor(NAMES)
    assert all(drift == Drift() for drift in _run(monitor, 200, late=0.1))
    after = _run(monitor, 60, late=0.5, start=200)
    first = next(tick for tick, drift in enumerate(after) if drift.reason)
    assert first < 36, "three minutes"
    assert after[first].found[0][0] == "vip"
    assert after[first].found[0][1] in {"adwin", "page_hinkley"}
    assert "vip" in str(after[first].reason)
    assert "batch" not in str(after[first].reason)
    assert after[first].retrain == after[first].reason
    assert all(drift.reason and not drift.found for drift in after[first + 1 :])


def test_recovery_gives_the_model_back_but_the_retrain_stays_asked_for() -> None:
    monitor = DriftMonitor(NAMES)
    _run(monitor, 200, late=0.1)
    assert _run(monitor, 60, late=0.5, start=200)[-1].reason is not None
    back = _run(monitor, RECENT + RECOVERED_AFTER + 10, late=0.1, start=260)
    assert back[RECOVERED_AFTER - 1].reason is not None, "not before it has lasted"
    assert back[-1].reason is None
    assert back[-1].retrain is not None


def test_another_version_starts_with_a_clean_slate() -> None:
    monitor = DriftMonitor(NAMES)
    _run(monitor, 200, late=0.1)
    assert _run(monitor, 60, late=0.5, start=200)[-1].retrain is not None
    assert monitor.observe(_forecast(2000.0, (0.5, 0.1), version="4")) == Drift()


def test_the_rule_and_an_untrained_model_can_not_drift() -> None:
    monitor = DriftMonitor(NAMES)
    for tick in range(300):
        late = 0.1 if tick < 150 else 0.9
        forecast = _forecast(STEP_S * tick, (late, late), expected=None)
        assert monitor.observe(forecast) == Drift()


@given(st.integers(0, 1000))
def test_noise_is_no_drift(seed: int) -> None:
    random, watch = Random(seed), ResidualWatch()
    assert not any(watch.update(random.gauss(0.05, 0.1)) for _ in range(500))


@given(st.integers(0, 1000), st.sampled_from([-0.4, 0.4]))
def test_a_model_that_gets_better_has_not_drifted(seed: int, bias: float) -> None:
    random, watch = Random(seed), ResidualWatch()
    means = [bias] * 200 + [0.0] * 200
    assert not any(watch.update(random.gauss(mean, 0.05)) for mean in means)


@given(st.integers(0, 1000), st.sampled_from([-0.4, 0.4]))
def test_a_shift_either_way_is_found(seed: int, shift: float) -> None:
    random, watch = Random(seed), ResidualWatch()
    for _ in range(150):
        watch.update(random.gauss(0.0, 0.1))
    assert any(watch.update(random.gauss(shift, 0.1)) for _ in range(60))
    assert abs(watch.usual) < 0.1, "what the drift brought is not what is usual"


@pytest.mark.parametrize(("before", "after"), [(-0.26, 0.49), (0.3, -0.6), (0.0, 0.4)])
def test_a_shift_through_zero_is_found_however_quick_the_detector_is(
    before: float, after: float
) -> None:
    watch = ResidualWatch()
    assert not any(watch.update(before) for _ in range(120))
    assert any(watch.update(after) for _ in range(RECENT + 5))


def test_changed_inputs_ask_for_a_retrain_and_leave_the_model_in_place() -> None:
    monitor = DriftMonitor(NAMES)
    random = Random(0)
    drifts = [
        monitor.observe(
            _forecast(STEP_S * tick, (0.1, 0.1), waiting=random.gauss(0 if tick < 150 else 3, 1))
        )
        for tick in range(260)
    ]
    assert drifts[149] == Drift()
    assert drifts[-1].reason is None
    assert drifts[-1].retrain == "inputs changed: log1p_waiting of vip (kswin)"


def test_steady_inputs_ask_for_nothing() -> None:
    random, watch = Random(1), InputWatch(2)
    assert all(watch.update([random.gauss(0, 1), random.random()]) is None for _ in range(600))


def test_ticks_that_come_faster_than_steps_give_one_residual_per_step() -> None:
    monitor = DriftMonitor(NAMES)
    for second in range(200):
        monitor.observe(_forecast(float(second), (0.1, 0.1)))
    vip = monitor._residuals[0]
    assert vip._usual_count + len(vip._recent) == 200 // STEP_S - 1


def test_a_drifted_forecast_yields_the_rule_of_the_same_window() -> None:
    forecast = _forecast(0.0, (0.1, 0.1))
    ruled = forecast.yielding("drift: vip")
    assert (ruled.mode, ruled.reason, ruled.model_version) == (Mode.RULE, "drift: vip", None)
    assert (ruled.wanted == forecast.rule_shares).all()
    assert ruled.residuals is None
    assert replace(ruled).yielding("another reason").reason == "drift: vip"
