"""Promotion and rollback on a real SQLite store."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.models import app
from models.bundle import Bundle
from models.errors import NothingToRollBackTo, PromotionRefused, UnknownVersion
from models.registry import CHALLENGER, Registry, RegistryLocation, RunRecord
from models.succession import Action, Gates
from models.verdicts import Verdict

pytestmark = pytest.mark.system
RUNNER = CliRunner()
GOOD = Verdict("replay", passed=True, reason="loss -10%", figures={"high": -0.05})
BAD = Verdict("throughput", passed=False, reason="tokens/s -5%")


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store of three versions; each test leaves version 1 as champion."""
    folder: Path = tmp_path_factory.mktemp("store")
    location = f"sqlite:///{folder}/mlflow.db"
    registry = Registry(RegistryLocation(location))
    registry.ensure_first_version()
    for seed in (1, 2):
        registry.register(Bundle.untrained(seed), alias=CHALLENGER, run=RunRecord("another"))
    return location


@pytest.fixture
def registry(uri: str) -> Registry:
    opened = Registry(RegistryLocation(uri))
    opened.promote("1", actor="test", reason="start", force=True)
    return opened


def _aliases(registry: Registry) -> dict[str, str]:
    return {alias: entry.version for entry in registry.versions() for alias in entry.aliases}


def test_failure_26_one_command_goes_back_and_the_trail_tells_who_was_champion_when(
    registry: Registry, uri: str
) -> None:
    before = len(registry.history())
    registry.promote("2", actor="ada", reason="lower loss")
    registry.promote("3", actor="bob", reason="lower still")
    arguments = ["--actor", "eve", "--reason", "slow", "--tracking-uri", uri]
    done = RUNNER.invoke(app, ["rollback", *arguments])
    assert (done.exit_code, done.stdout) == (0, "version 2 is @champion again\n")
    assert registry.champion_version() == "2"
    assert _aliases(registry)["previous"] == "1", "whom version 2 had replaced"
    assert registry.rollback(actor="eve", reason="slow, too") == "1"
    trail = registry.history()[before:]
    assert [(e.action, e.version, e.replaced, e.actor, e.reason) for e in trail] == [
        (Action.PROMOTE, "2", "1", "ada", "lower loss"),
        (Action.PROMOTE, "3", "2", "bob", "lower still"),
        (Action.ROLL_BACK, "2", "3", "eve", "slow"),
        (Action.ROLL_BACK, "1", "2", "eve", "slow, too"),
    ]
    assert [entry.at for entry in trail] == sorted(entry.at for entry in trail)
    shown = RUNNER.invoke(app, ["history", "--tracking-uri", uri], env={"COLUMNS": "200"})
    assert "roll_back" in shown.stdout
    assert "lower still" in shown.stdout
    with pytest.raises(PromotionRefused, match=r"rolled back at .*: slow"):
        registry.promote("3", actor="ada", reason="once more")


def test_a_version_that_failed_a_gate_is_refused_unless_forced_and_the_trail_tells(
    registry: Registry, uri: str
) -> None:
    version = registry.register(Bundle.untrained(3), alias=None, run=RunRecord("failed"))
    registry.record_verdicts(version, [GOOD, BAD])
    command = ["promote", version, "--actor", "ada", "--reason", "I know", "--tracking-uri", uri]
    refused = RUNNER.invoke(app, command)
    assert refused.exit_code == 2
    assert "gate throughput: tokens/s -5%" in refused.stderr
    assert registry.champion_version() == "1"
    assert RUNNER.invoke(app, [*command, "--force"]).exit_code == 0
    newest = registry.history()[-1]
    assert (newest.version, newest.gates, newest.forced) == (version, Gates.FAILED, True)
    assert registry.champion_version() == version


def test_a_version_that_passed_is_promoted_without_force_and_shown_so(
    registry: Registry, uri: str
) -> None:
    version = registry.register(Bundle.untrained(4), alias=None, run=RunRecord("passed"))
    registry.record_verdicts(version, [GOOD])
    registry.promote(version, actor="ada", reason="it passed")
    assert registry.history()[-1].gates is Gates.PASSED
    assert not registry.history()[-1].forced
    shown = RUNNER.invoke(app, ["list", "--tracking-uri", uri], env={"COLUMNS": "200"})
    assert "passed" in shown.stdout


def test_without_a_previous_champion_there_is_nothing_to_go_back_to(tmp_path: Path) -> None:
    fresh = Registry(RegistryLocation(f"sqlite:///{tmp_path}/mlflow.db"))
    fresh.ensure_first_version()
    with pytest.raises(NothingToRollBackTo, match="no version of model"):
        fresh.rollback(actor="ada", reason="why")
    with pytest.raises(UnknownVersion):
        fresh.record_verdicts("9", [GOOD])


def test_promoting_the_champion_again_keeps_the_previous_one(registry: Registry) -> None:
    registry.promote("2", actor="ada", reason="x", force=True)
    registry.promote("2", actor="ada", reason="again")
    assert _aliases(registry)["previous"] == "1"
