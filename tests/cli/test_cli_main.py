from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app

COMMANDS = (
    "demo",
    "serve",
    "explain",
    "discipline",
    "doctor",
    "weights",
    "models",
    "train",
    "simulate",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_a_results_file_that_cannot_be_written_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    target = tmp_path / "missing" / "results.json"
    result = CliRunner().invoke(app, ["demo", "--json", str(target)])
    assert result.exit_code == 2
    assert "missing" in result.output


def test_a_duration_too_short_to_say_anything_is_refused() -> None:
    result = CliRunner().invoke(app, ["demo", "--duration", "1"])
    assert result.exit_code == 2
