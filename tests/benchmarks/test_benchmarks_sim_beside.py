from dataclasses import asdict

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks.sim.__main__ import main
from benchmarks.sim.beside import engine_environment
from benchmarks.sim.fidelity import PREEMPTION
from dataplane.config import PreemptionSettings, load_config


def test_the_engine_that_is_compared_schedules_with_what_the_simulator_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in engine_environment().items():
        monkeypatch.setenv(name, value)
    config = load_config()
    assert config.preemption == PreemptionSettings(**asdict(PREEMPTION))
    assert not config.reserve.enabled
    assert not config.breaker.enabled


def test_nothing_to_do_is_an_error_that_names_what_there_is() -> None:
    app = Typer()
    app.command()(main)
    result = CliRunner().invoke(app, ["--quick"])
    assert result.exit_code == 2
    for option in ("--speed", "--fidelity", "--calibrate"):
        assert option in result.output
