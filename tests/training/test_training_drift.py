"""A trained network's own forecasts, on the metrics of a fleet that gets slower."""

from dataclasses import replace

import pytest
import torch

from controlplane.drift import DriftMonitor
from controlplane.forecaster import Champion, Forecaster
from controlplane.loop import Observation
from controlplane.snapshot import Mode
from models.bundle import Bundle, Provenance
from models.window import STEP_S, Window
from training.closed_loop.controller import RuleController
from training.closed_loop.steer import steer
from training.dataset import build_examples
from training.fit import FitOptions, fit
from training.rehearsal.traffic import joined
from training.simulator.calibration import REFERENCE_ENGINE
from training.simulator.course import Course
from training.simulator.model import Fleet
from training.simulator.regimes import draw_scenario
from training.simulator.traffic import REFERENCE

CLASSES = tuple(kind.task_class for kind in REFERENCE)
LEARNED_TICKS, SLOWER_TICK, TICKS = 240, 480, 640


@pytest.fixture(scope="module")
def windows() -> tuple[Window, ...]:
    """An hour, most of it at half of the capacity; from ``SLOWER_TICK`` on the engine crawls."""
    calm = draw_scenario(
        "stationary", REFERENCE, requests_per_s=5.0, duration_s=TICKS * STEP_S, seed=3
    )
    slower = Course.change(SLOWER_TICK * STEP_S, 60.0, 1.0, 3.0)
    drifting = replace(calm, step_time=slower)
    fleet = Fleet(REFERENCE_ENGINE.engine)
    return steer(drifting, fleet, RuleController(), drain_s=0.0).windows


@pytest.fixture(scope="module")
def trained(windows: tuple[Window, ...]) -> Bundle:
    history = joined([windows[tick] for tick in range(12, LEARNED_TICKS, 12)])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    fitted = fit(build_examples([history], CLASSES), FitOptions(max_epochs=25))
    torch.set_num_threads(threads)
    return Bundle(fitted.network, Provenance("test", seed=0))


def test_failure_28_a_fleet_that_drifts_gets_the_rule_and_a_retrain_and_no_other_model(
    windows: tuple[Window, ...], trained: Bundle
) -> None:
    forecaster, monitor = Forecaster(CLASSES), DriftMonitor([one.name for one in CLASSES])
    forecaster.swap(Champion("7", trained))
    modes, asked = [], []
    for window in windows[12:]:
        forecast = forecaster.forecast(window)
        assert forecast.violation is not None, "a trained network forecasts"
        seen = Observation(forecast, monitor.observe(forecast), guest=None)
        modes.append(seen.heeding_drift.mode)
        asked.append(seen.drift.retrain)
    calm = SLOWER_TICK - 12
    assert set(modes[:calm]) == {Mode.LEARNED}, "noise is no drift"
    first = modes.index(Mode.RULE)
    assert calm < first < calm + 60, "within five minutes"
    assert asked[first] is not None
    assert asked[first].startswith("drift: ")
    assert asked[-1] is not None, "asked for until another version serves"
    assert forecaster.serving_version == "7", "nothing is promoted by itself"


def test_residuals_of_a_trained_network_are_those_of_its_forecast(
    windows: tuple[Window, ...], trained: Bundle
) -> None:
    """Before the drift they are near 0, which an untrained network's are not."""

    def residuals(bundle: Bundle) -> float:
        examples = build_examples([joined(windows[LEARNED_TICKS:SLOWER_TICK:12])], CLASSES)
        with torch.inference_mode():
            logits = bundle.network.logits(torch.from_numpy(examples.features))
        expected = torch.sigmoid(logits).numpy()
        return float((expected - examples.target)[examples.mask].mean())

    assert abs(residuals(trained)) < 0.03
    assert residuals(Bundle.untrained()) > 0.3
