import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.models import app
from models.bundle import Bundle
from models.registry import CHALLENGER, Registry, RegistryLocation, RunRecord

RUNNER = CliRunner()
CONFIG = """
registry: {{tracking_uri: "sqlite:///{folder}/mlflow.db"}}
classes:
  vip: {{slo: {{ttft_s: 1.0}}, value: 8}}
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a registry of two versions and a configuration that names it."""
    folder = tmp_path_factory.mktemp("store")
    registry = Registry(RegistryLocation(f"sqlite:///{folder}/mlflow.db"))
    registry.ensure_first_version()
    metrics = {"validation_loss": 0.25, "persistence_loss": 0.5}
    registry.register(
        Bundle.untrained(1), alias=CHALLENGER, run=RunRecord("another", metrics=metrics)
    )
    (folder / "trimtab.yaml").write_text(CONFIG.format(folder=folder))
    return folder


@pytest.mark.system
def test_list_shows_versions_aliases_and_losses(store: Path) -> None:
    shown = RUNNER.invoke(app, ["list", "--config", f"{store}/trimtab.yaml"])
    assert shown.exit_code == 0
    newest, oldest = (line for line in shown.stdout.splitlines() if "@" in line)
    assert "@challenger" in newest
    assert "0.2500" in newest
    assert "0.5000" in newest
    assert "@champion" in oldest


@pytest.mark.system
def test_json_list_holds_what_a_program_needs(store: Path) -> None:
    shown = RUNNER.invoke(app, ["list", "--json", "--tracking-uri", f"sqlite:///{store}/mlflow.db"])
    versions = json.loads(shown.stdout)
    assert [version["version"] for version in versions] == ["2", "1"]
    assert versions[0]["metrics"] == {"validation_loss": 0.25, "persistence_loss": 0.5}


@pytest.mark.system
def test_promote_changes_the_champion_and_signs_with_the_users_name(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "grace")
    uri = f"sqlite:///{store}/mlflow.db"
    arguments = ["--reason", "lower loss", "--tracking-uri", uri]
    promoted = RUNNER.invoke(app, ["promote", "2", *arguments])
    assert (promoted.exit_code, promoted.stdout) == (0, "version 2 is @champion\n")
    registry = Registry(RegistryLocation(uri))
    assert registry.versions()[0].tags["promotion.actor"] == "grace"
    assert RUNNER.invoke(app, ["promote", "1", *arguments]).exit_code == 0
    assert registry.champion_version() == "1"


def test_user_without_a_name_is_asked_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 4_000_000_000)  # as in a container without passwd
    refused = RUNNER.invoke(app, ["promote", "1", "--reason", "why"])
    assert refused.exit_code == 2
    assert "--actor NAME" in refused.stderr


@pytest.mark.system
def test_promoting_an_unknown_version_is_a_usage_error(store: Path) -> None:
    refused = RUNNER.invoke(
        app, ["promote", "9", "--reason", "typo", "--config", f"{store}/trimtab.yaml"]
    )
    assert refused.exit_code == 2
    assert "has no version '9'" in refused.stderr
    assert "trimtab models list" in refused.stderr


@pytest.mark.system
def test_store_that_does_not_answer_is_unavailable(unused_tcp_port: int) -> None:
    failed = RUNNER.invoke(app, ["list", "--tracking-uri", f"http://127.0.0.1:{unused_tcp_port}"])
    assert failed.exit_code == 3
    assert "fix:" in failed.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["promote", "1"],
        ["promote", "1", "--reason", " "],
        ["promote", "1", "--reason", "why", "--actor", ""],
        ["list", "--config", "/no/such/file.yaml"],
    ],
)
def test_missing_input_is_a_usage_error(arguments: list[str]) -> None:
    assert RUNNER.invoke(app, arguments).exit_code == 2
