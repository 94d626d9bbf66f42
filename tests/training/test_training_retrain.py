"""From a history to a challenger on a real MLflow store."""

from pathlib import Path

import pytest

from models.bundle import Bundle
from models.classes import TaskClass
from models.registry import CHAMPION, Registry, RegistryLocation
from models.versions import RunRecord
from models.window import STEPS, Window
from training.fit import FitOptions
from training.online.memory import recall
from training.retrain import learn

pytestmark = pytest.mark.system


def test_challenger_is_registered_with_its_losses_and_does_not_serve(
    history: Window, classes: tuple[TaskClass, ...], tmp_path: Path
) -> None:
    registry = Registry(RegistryLocation(f"sqlite:///{tmp_path}/mlflow.db"))
    registry.register(Bundle.untrained(), alias=CHAMPION, run=RunRecord("untrained"))
    version = learn(
        history, classes, registry, options=FitOptions(max_epochs=30), memory=recall(tmp_path)
    )
    newest = registry.versions()[0]
    assert (newest.version, newest.aliases) == (version, ("challenger",))
    assert newest.metrics["validation_loss"] < newest.metrics["persistence_loss"]
    assert newest.metrics["train_loss"] > 0
    assert registry.champion_version() == "1"

    bundle = registry.load(version)
    assert bundle.provenance.data_end_unix_s == history.end_unix_s
    assert bundle.provenance.data_start_unix_s == history.end_unix_s - 1200
    prediction = bundle.predict(history.between(50, 50 + STEPS), classes)
    assert prediction.unfamiliarity.max() < 1.0, "it knows what it learned from"
    assert (prediction.violation != 0.5).all(), "it has learned something"
    assert (prediction.weights == prediction.rule_shares).all(), "and of weights there was nothing"

    registry.promote(version, actor="ada", reason="lower loss")
    assert registry.champion_version() == version
