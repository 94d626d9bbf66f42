"""What the gates say is kept with a version, and decides whether it may be promoted."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from steering_networks import leaning, lived_history

from cli.guardrails import Guardrails
from cli.train_gate import ACTOR, promoted_if_passed
from cli.train_simulated import Judging
from models.bundle import Bundle
from models.errors import PromotionRefused
from models.registry import Registry, RegistryLocation
from models.succession import Gates, gates_of, verdicts_of
from models.versions import RunRecord
from models.window import Window
from training.fit import FitOptions
from training.online.memory import recall
from training.rehearsal.learning import Practice, Rehearsed
from training.retrain import learn
from training.simulator.traffic import REFERENCE
from training.trials.evidence import TrialOptions

pytestmark = pytest.mark.system

CLASSES = tuple(kind.task_class for kind in REFERENCE)
BAD = leaning(-4.0)
JUDGE = Judging(Guardrails(0.2), TrialOptions(replay_factor=2, duration_s=60.0), console=None)


@pytest.fixture(scope="module")
def lived() -> Window:
    return lived_history(1200.0, 0.95)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(RegistryLocation(f"sqlite:///{tmp_path}/mlflow.db"))


def rehearsed_to(bundle: Bundle) -> Callable[[Practice], Rehearsed]:
    """A rehearsal that comes to such a network."""

    def rehearse(practice: Practice) -> Rehearsed:
        assert practice.start is not None, "the release's own model serves"
        features = np.zeros((1, len(practice.classes), 12, 12), dtype=np.float32)
        return Rehearsed(bundle.network, 0.0, (), features)

    return rehearse


def test_a_worse_candidate_is_refused_and_the_champion_stays(
    lived: Window, registry: Registry, tmp_path: Path
) -> None:
    registry.ensure_first_version()
    version = learn(
        lived,
        CLASSES,
        registry,
        options=FitOptions(max_epochs=2),
        memory=recall(tmp_path / "state"),
        rehearse=rehearsed_to(BAD),
        judge=JUDGE,
    )
    newest = registry.versions()[0]
    assert gates_of(newest.tags) is Gates.FAILED
    assert "replay" in newest.tags["trimtab.failed_gates"]
    assert newest.metrics["gate.replay.passed"] == 0
    assert (
        newest.metrics["regime.replay.model_loss"] > newest.metrics["regime.replay.champion_loss"]
    )
    assert (newest.version, newest.aliases) == (version, ("challenger",))

    done = promoted_if_passed(registry, newest)
    assert not done.promoted
    assert done.held_back is not None
    assert "gate replay: loss +" in done.held_back
    with pytest.raises(PromotionRefused, match="gate replay"):
        registry.promote(version, actor="ada", reason="by mistake")
    assert registry.champion_version() == "1"
    assert not any(entry.version == version for entry in registry.history())


def test_an_honest_candidate_takes_the_place_of_a_bad_champion(
    lived: Window, registry: Registry, tmp_path: Path
) -> None:
    bad = registry.register(BAD, alias=None, run=RunRecord("bad"))
    registry.promote(bad, actor="ada", reason="by mistake", force=True)
    version = learn(
        lived,
        CLASSES,
        registry,
        options=FitOptions(max_epochs=2),
        memory=recall(tmp_path / "state"),
        judge=JUDGE,
        fresh=True,
    )
    trained = registry.versions()[0]
    verdicts = verdicts_of(trained.tags)
    assert gates_of(trained.tags) is Gates.PASSED, verdicts
    assert trained.tags["trimtab.started_from"] == "fresh"
    done = promoted_if_passed(registry, trained)
    assert (done.promoted, registry.champion_version()) == (True, version)
    entry = registry.history()[-1]
    assert (entry.actor, entry.gates, entry.forced) == (ACTOR, Gates.PASSED, False)
    assert all(verdict.name in entry.reason for verdict in verdicts)
    assert done.document["outcome"] == "passed"
    assert {gate["name"] for gate in done.document["gates"]} == {one.name for one in verdicts}


def test_what_was_not_judged_is_not_promoted_by_itself(
    lived: Window, registry: Registry, tmp_path: Path
) -> None:
    registry.ensure_first_version()
    memory = recall(tmp_path / "state")
    learn(lived, CLASSES, registry, options=FitOptions(max_epochs=2), memory=memory)
    trained = registry.versions()[0]
    assert gates_of(trained.tags) is Gates.NONE
    done = promoted_if_passed(registry, trained)
    assert (done.promoted, done.held_back) == (False, "no gate was asked")
    assert registry.champion_version() == "1"
