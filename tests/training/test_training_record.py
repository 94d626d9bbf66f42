import dataclasses
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle import Bundle, Provenance
from models.classes import TaskClass
from models.window import Signal, Window
from training.dataset import build_examples
from training.fit import FitOptions, fit
from training.record import plots
from training.record.lineage import Lineage, dataset_record, git_sha
from training.record.results import Judgement, RegimeLosses
from training.record.run import Retraining, run_record

OPTIONS = FitOptions(max_epochs=2)


@dataclass(frozen=True)
class Verdict:
    name: str
    passed: bool
    reason: str
    figures: Mapping[str, float] = field(default_factory=dict)


JUDGED = Judgement(
    verdicts=[
        Verdict("schema", passed=True, reason="same hash"),
        Verdict("replay", passed=False, reason="loss 3% higher", figures={"loss_ratio": 1.03}),
    ],
    regimes=[
        RegimeLosses("flash-crowd", {"model": 0.2, "best_static": 0.4, "oracle": 0.1}),
        RegimeLosses("stationary", {"model": 0.2, "rule": 0.21}),
    ],
)
LINEAGE = Lineage("http://127.0.0.1:9090", "3", "cafe", "f00d")


@pytest.fixture(scope="module")
def done(history: Window, classes: tuple[TaskClass, ...]) -> Retraining:
    fitted = fit(build_examples([history], classes), OPTIONS)
    bundle = Bundle(fitted.network, Provenance("violation-forecast", seed=0))
    return Retraining(bundle, fitted, history, classes, OPTIONS, JUDGED, LINEAGE)


def pixels(png: bytes) -> np.ndarray:
    return matplotlib.image.imread(io.BytesIO(png), format="png")


@pytest.mark.parametrize(
    ("loss", "closed"),
    [
        ({"model": 0.2, "best_static": 0.4, "oracle": 0.1}, 2 / 3),
        ({"model": 0.5, "best_static": 0.4, "oracle": 0.2}, -0.5),
        ({"model": 0.2, "best_static": 0.1, "oracle": 0.1}, None),
        ({"model": 0.2, "best_static": 0.4}, None),
        ({}, None),
    ],
)
def test_gap_closed_is_told_where_there_is_one(
    loss: dict[str, float], closed: float | None
) -> None:
    ratio = RegimeLosses("any", loss).gap_closed_ratio
    assert ratio == (None if closed is None else pytest.approx(closed))


def test_metrics_have_the_same_names_for_every_version(done: Retraining) -> None:
    metrics = run_record(done).metrics
    assert metrics["regime.flash-crowd.model_loss"] == 0.2
    assert metrics["regime.flash-crowd.gap_closed_ratio"] == pytest.approx(2 / 3)
    assert metrics["regime.stationary.rule_loss"] == 0.21
    assert "regime.stationary.gap_closed_ratio" not in metrics
    assert (metrics["gate.schema.passed"], metrics["gate.replay.passed"]) == (1.0, 0.0)
    assert metrics["validation_loss"] == done.fitted.metrics["validation_loss"]
    assert 0 <= metrics["calibration_error"] <= 1


def test_tags_and_description_say_why(done: Retraining) -> None:
    record = run_record(done)
    assert record.tags["trimtab.gates"] == "failed"
    assert record.tags["trimtab.failed_gates"] == "replay"
    assert record.tags["trimtab.started_from"] == "version 3"
    assert record.tags["trimtab.calibration_hash"] == "cafe"
    assert record.tags["trimtab.git_sha"] == "f00d"
    assert "| replay | **no** | loss 3% higher |" in record.description
    assert "| flash-crowd | 0.2000 | 67% |" in record.description
    unjudged = run_record(dataclasses.replace(done, judgement=Judgement(), lineage=Lineage()))
    assert unjudged.tags["trimtab.gates"] == "not run"
    assert unjudged.params["start"] == "fresh"
    assert "|" not in unjudged.description


def test_each_gate_is_a_child(done: Retraining) -> None:
    schema, replay = run_record(done).children
    assert (schema.name, schema.passed) == ("gate: schema", True)
    assert (replay.passed, replay.tags["trimtab.reason"]) == (False, "loss 3% higher")
    assert replay.metrics == {"loss_ratio": 1.03, "passed": 0.0}


def test_every_picture_is_drawn(done: Retraining) -> None:
    files = run_record(done).files
    assert sorted(files) == [
        "plots/gap_closed.png", "plots/loss.png", "plots/reliability.png", "plots/weights.png",
    ]  # fmt: skip
    for png in files.values():
        assert pixels(png).std() > 0, "the picture is empty"
    unjudged = run_record(dataclasses.replace(done, judgement=Judgement()))
    assert "plots/gap_closed.png" not in unjudged.files


def test_weights_show_in_the_heat_map() -> None:
    shares = np.full((2, 40), 0.5)
    moved = shares.copy()
    moved[:, 20:] = [[0.9], [0.1]]
    one, other = (
        plots.weight_map(each, ("vip", "free"), start_s=-200.0, step_s=5.0)
        for each in (shares, moved)
    )
    assert one != other


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=60))
def test_reliability_counts_every_forecast_once(pairs: list[tuple[float, float]]) -> None:
    predicted, realised = np.array(pairs).T
    points = plots.reliability_points(predicted, realised)
    assert sum(count for _, _, count in points) == len(pairs)
    assert sum(mean * count for mean, _, count in points) == pytest.approx(predicted.sum())
    assert sum(outcome * count for _, outcome, count in points) == pytest.approx(realised.sum())
    slow = sum(abs(mean - outcome) * count for mean, outcome, count in points) / len(pairs)
    assert plots.calibration_error(predicted, realised) == pytest.approx(slow)


def test_perfect_forecast_has_no_calibration_error() -> None:
    predicted = np.linspace(0, 1, 50)
    assert plots.calibration_error(predicted, predicted) == pytest.approx(0)


def test_dataset_is_named_by_its_range_and_told_apart_by_its_values(history: Window) -> None:
    record = dataset_record(history, LINEAGE)
    assert record.tags["window_end"] == "2023-11-14T22:13:20+00:00"
    assert record.tags["window_start"] == "2023-11-14T21:53:20+00:00"
    assert record.tags["calibration_hash"] == "cafe"
    assert record.source == "http://127.0.0.1:9090"
    assert record.digest == dataset_record(history, Lineage()).digest
    assert len(record.digest) <= 36
    changed = {signal: values.copy() for signal, values in history.signals.items()}
    changed[Signal.WAITING][0, 0] += 1
    other = dataclasses.replace(history, signals=changed)
    assert record.digest != dataset_record(other, LINEAGE).digest


def test_password_of_the_source_is_not_kept(history: Window) -> None:
    secret = Lineage(source="https://ada:secret@metrics.example:9090/prom")
    assert dataset_record(history, secret).source == "https://metrics.example:9090/prom"
    assert dataset_record(history, Lineage()).source == "a history at hand"


def test_git_sha_is_a_commit_or_nothing() -> None:
    sha = git_sha()
    assert sha is None or re.fullmatch("[0-9a-f]{40}", sha)
