"""Two retrainings in a row: the second goes on from what the first left."""

from pathlib import Path

import pytest

from models.bundle import Bundle
from models.classes import TaskClass
from models.registry import CHAMPION, Registry, RegistryLocation
from models.versions import RunRecord
from models.window import Window
from training.fit import FitOptions
from training.online.memory import recall
from training.retrain import learn

pytestmark = pytest.mark.system


def test_retraining_goes_on_from_the_champion_and_remembers(
    history: Window, classes: tuple[TaskClass, ...], tmp_path: Path
) -> None:
    registry = Registry(RegistryLocation(f"sqlite:///{tmp_path}/mlflow.db"))
    registry.register(Bundle.untrained(), alias=CHAMPION, run=RunRecord("untrained"))
    state = tmp_path / "state"
    options = FitOptions(max_epochs=20)

    early = history.between(0, 140)
    first = learn(early, classes, registry, options=options, memory=recall(state))
    trained = registry.versions()[0]
    assert trained.tags["trimtab.started_from"] == "fresh", "version 1 has learned nothing"
    assert "champion_loss" not in trained.metrics
    assert len(recall(state).reservoir) == 140 - 12
    registry.promote(first, actor="ada", reason="lower loss")

    memory = recall(state)
    second = learn(history, classes, registry, options=options, memory=memory)
    tuned = registry.versions()[0]
    assert tuned.tags["trimtab.started_from"] == f"version {first}"
    assert tuned.metrics["champion_loss"] > 0
    assert tuned.tags["trimtab.calibration_hash"] == memory.calibration.hash
    provenance = registry.load(second).provenance
    assert (provenance.started_from, provenance.calibration_hash) == (
        first,
        memory.calibration.hash,
    )
    assert len(recall(state).reservoir) == history.steps - 12
