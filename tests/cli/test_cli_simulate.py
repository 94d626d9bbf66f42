import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from cli.main import app
from training.simulator.calibration import REFERENCE_ENGINE

TRACE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-03-01 00:00:00.0000000,400,10\n"
    "2024-03-01 00:00:01.0000000,300,8\n"
    "2024-03-01 00:00:01.5000000,20,1\n"
)
CONFIG = "classes:\n  code: {slo: {ttft_s: 0.25}, value: 3}\n"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)], env={"COLUMNS": "160"})


def test_policies_are_compared_on_the_same_scenario(tmp_path: Path) -> None:
    target = tmp_path / "r.json"
    result = run(
        "--scenario", "flash-crowd", "--policy", "fcfs", "--policy", "strict",
        "--duration", "60", "--load", "0.8", "--json", target,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    for name in ("vip", "free", "long", "batch", "fcfs", "strict", "value/s"):
        assert name in result.output
    document = json.loads(target.read_text())
    assert set(document["policies"]) == {"fcfs", "strict"}
    assert document["seed"] == 1
    assert document["calibration"]["hash"] == REFERENCE_ENGINE.hash
    counts = [
        {name: own["n"] for name, own in policy["classes"].items()}
        for policy in document["policies"].values()
    ]
    assert counts[0] == counts[1]
    assert sum(counts[0].values()) == document["requests"]
    fcfs, strict = (document["policies"][name] for name in ("fcfs", "strict"))
    assert strict["classes"]["vip"]["ttft_p99_s"] < fcfs["classes"]["vip"]["ttft_p99_s"]
    assert fcfs["classes"]["vip"]["value"] == 10.0
    assert isinstance(fcfs["preemptions"], int)


def test_the_same_seed_gives_the_same_results(tmp_path: Path) -> None:
    def results(name: str, seed: str) -> object:
        target = tmp_path / name
        run("--scenario", "error-burst", "--duration", "30", "--seed", seed, "--json", target)
        document = json.loads(target.read_text())
        return document["policies"]

    assert results("a", "3") == results("b", "3")
    assert results("c", "4") != results("d", "3")


def test_a_trace_is_one_class_and_takes_its_objective_from_the_configuration(
    tmp_path: Path,
) -> None:
    trace, config = tmp_path / "morning.csv", tmp_path / "trimtab.yaml"
    trace.write_text(TRACE)
    config.write_text(CONFIG)
    plain = run("--trace", trace, "--policy", "apq")
    assert plain.exit_code == 0, plain.output
    assert "morning (2 s)" in plain.output
    assert "3 requests" in plain.output
    described = run("--trace", f"code={trace}", "--config", config, "--time-scale", "2")
    assert described.exit_code == 0, described.output
    assert "code (0.25 s)" in described.output
    assert "in 3 s" in described.output


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_results_can_be_drawn(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"plot.{suffix}"
    result = run("--scenario", "stationary", "--duration", "20", "--plot", target)
    assert result.exit_code == 0, result.output
    assert target.stat().st_size > 1000


def test_another_calibration_gives_other_results(tmp_path: Path) -> None:
    slow = REFERENCE_ENGINE.with_coefficients(REFERENCE_ENGINE.coefficients * 3, "slow")
    slow.save(tmp_path / "slow.json")
    target = tmp_path / "r.json"
    result = run(
        "--scenario", "stationary", "--duration", "20",
        "--calibration", tmp_path / "slow.json", "--json", target,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert json.loads(target.read_text())["calibration"] == {"hash": slow.hash, "origin": "slow"}


@pytest.mark.parametrize(
    ("arguments", "cause", "fix"),
    [
        ([], "scenario or traces", "--scenario NAME"),
        (["--scenario", "stationary", "--trace", "x.csv"], "not both", "--trace FILE"),
        (["--scenario", "doomsday"], "doomsday", "flash-crowd"),
        (["--scenario", "stationary", "--policy", "luck"], "luck", "apq-uniform"),
        (["--trace", "absent.csv"], "absent.csv", "leave it out"),
        (["--trace", "notes.txt"], "notes.txt", "leave it out"),
        (["--scenario", "stationary", "--calibration", "absent.json"], "absent.json", "calibrate"),
        (["--scenario", "stationary", "--json", "nowhere/r.json"], "nowhere", "--json"),
        (["--scenario", "stationary", "--plot", "r.bmp"], "r.bmp", ".svg"),
        (["--trace", "a.csv", "--config", "absent.yaml"], "absent.yaml", "correct"),
    ],
)
def test_bad_input_is_refused_with_cause_and_fix(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    cause: str,
    fix: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    assert "error:" in result.output
    assert cause in result.output
    assert fix in result.output


def test_a_bad_line_of_a_trace_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(TRACE + "2024-03-01 00:00:09,nan,1\n")
    result = run("--trace", path)
    assert result.exit_code == 2
    assert "line 5" in result.output
    assert "ContextTokens" in result.output


def test_a_class_that_the_configuration_lacks_is_refused(tmp_path: Path) -> None:
    trace, config = tmp_path / "t.csv", tmp_path / "trimtab.yaml"
    trace.write_text(TRACE)
    config.write_text(CONFIG)
    result = run("--trace", trace, "--config", config)
    assert result.exit_code == 2
    assert "no class 't'" in result.output
    assert "code" in result.output


def test_a_request_that_never_fits_is_refused_rather_than_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(TRACE)
    result = run("--trace", path, "--token-scale", "1000")
    assert result.exit_code == 2
    assert "tokens" in result.output
