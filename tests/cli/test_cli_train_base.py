"""`trimtab train base` trains, compares with the rule, and says what came of it."""

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from cli.main import app
from cli.train_base import Guardrails, trial_table
from training.regret.trial import Pair, standings


@pytest.mark.system
def test_a_small_training_ends_with_a_table_and_a_verdict(tmp_path: Path) -> None:
    arguments = ["train", "base", "--folder", str(tmp_path), "--rounds", "1", "--worlds", "2"]
    answer = CliRunner().invoke(app, [*arguments, "--trials", "2"])
    assert answer.exit_code == 0, answer.output
    assert "all" in answer.output
    assert "does not beat the rule" in answer.output  # two pairs prove nothing
    other = CliRunner().invoke(app, [*arguments, "--seed", "1"])
    assert other.exit_code == 2
    assert "other options" in other.output


def test_the_table_has_a_line_for_each_regime() -> None:
    console = Console(width=80, record=True, file=StringIO())
    console.print(trial_table(standings([Pair(1, "service-drift", 0.9, 0.5, 0.4, 0.3, 0.2)])))
    text = console.export_text()
    assert "service-drift" in text
    assert "\u2026" not in text  # nothing is cut off
    assert "-20.0%" in text


def test_guardrails_limit_a_step_of_the_log_shares() -> None:
    previous = np.array([0.5, 0.3, 0.2])
    shares = Guardrails(0.2)(np.array([1e-3, 1.0, 1.0]), previous)
    assert shares.sum() == pytest.approx(1.0)
    assert np.abs(np.log(shares / previous)).max() <= 0.2 + 1e-9
