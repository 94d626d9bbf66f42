"""`trimtab train run` against a real Prometheus with half an hour of history in it."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import requests
import typer
from typer.testing import CliRunner

from cli.train import app, duration_s
from models.registry import Registry, RegistryLocation
from models.window import STEP_S, Signal, Window

RUNNER = CliRunner()
COUNTERS = {
    "trimtab_requests_arrived": Signal.ARRIVALS_PER_S,
    "trimtab_prompt_tokens": Signal.PROMPT_TOKENS_PER_S,
    "trimtab_generation_tokens": Signal.GENERATION_TOKENS_PER_S,
}
GAUGES = {
    "trimtab_waiting_requests": Signal.WAITING,
    "trimtab_waiting_past_slo_requests": Signal.WAITING_PAST_SLO,
    "trimtab_oldest_wait_seconds": Signal.OLDEST_WAIT_S,
}


def openmetrics(history: Window) -> str:
    """The history as an engine would have exported it, one sample per step."""
    rates = history.signals
    met = rates[Signal.FINISHED_PER_S] - rates[Signal.VIOLATIONS_PER_S]
    first_tokens = rates[Signal.FINISHED_PER_S]
    families: list[tuple[str, str, list[tuple[str, str, np.ndarray]]]] = [
        *(
            (name, "counter", [("_total", "", total(rates[signal]))])
            for name, signal in COUNTERS.items()
        ),
        *((name, "gauge", [("", "", rates[signal])]) for name, signal in GAUGES.items()),
        (
            "trimtab_requests_finished",
            "counter",
            [
                ("_total", ',outcome="met"', total(met)),
                ("_total", ',outcome="late"', total(rates[Signal.VIOLATIONS_PER_S])),
            ],
        ),
        (
            "trimtab_ttft_seconds",
            "histogram",
            [
                ("_sum", "", total(first_tokens * rates[Signal.TTFT_MEAN_S])),
                ("_count", "", total(first_tokens)),
            ],
        ),
    ]
    lines = []
    for family, kind, series in families:
        lines.append(f"# TYPE {family} {kind}")
        for suffix, labels, values in series:
            for row, task_class in enumerate(history.task_classes):
                for step in range(history.steps):
                    unix_s = history.end_unix_s - (history.steps - 1 - step) * STEP_S
                    name = f'{family}{suffix}{{task_class="{task_class}"{labels}}}'
                    lines.append(f"{name} {values[row, step]} {unix_s:.0f}")
    return "\n".join([*lines, "# EOF", ""])


def total(rate_per_s: np.ndarray) -> np.ndarray:
    return np.cumsum(rate_per_s * STEP_S, axis=1)


def executable(name: str) -> str:
    path = shutil.which(name)
    assert path is not None, f"{name} is not installed"
    return path


def wait_until_ready(url: str) -> None:
    for _ in range(200):
        try:
            if requests.get(f"{url}/-/ready", timeout=1).ok:
                return
        except requests.ConnectionError:
            pass
        time.sleep(0.1)
    pytest.fail("Prometheus did not become ready")


@pytest.fixture
def prometheus(history: Window, tmp_path: Path, unused_tcp_port: int) -> Iterator[str]:
    """A Prometheus whose database holds the history, ending now."""
    recent = Window(float(int(time.time())), STEP_S, history.task_classes, history.signals)
    (tmp_path / "history.om").write_text(openmetrics(recent))
    (tmp_path / "prometheus.yml").write_text("scrape_configs: []\n")
    data = tmp_path / "data"
    backfill = [executable("promtool"), "tsdb", "create-blocks-from", "openmetrics", "-q"]
    subprocess.run([*backfill, tmp_path / "history.om", data], check=True)
    server = subprocess.Popen(
        [
            executable("prometheus"),
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={data}",
            f"--web.listen-address=127.0.0.1:{unused_tcp_port}",
            "--log.level=error",
        ]
    )
    try:
        wait_until_ready(f"http://127.0.0.1:{unused_tcp_port}")
        yield f"http://127.0.0.1:{unused_tcp_port}"
    finally:
        server.terminate()
        server.wait(timeout=20)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "trimtab.yaml"
    path.write_text(
        f"""
training: {{state: "{tmp_path}/state"}}
registry: {{tracking_uri: "sqlite:///{tmp_path}/mlflow.db", artifact_root: "{tmp_path}/files"}}
classes:
  vip: {{slo: {{ttft_s: 1.0}}, value: 8}}
  free: {{slo: {{ttft_s: 4.0}}}}
"""
    )
    return path


@pytest.mark.system
def test_history_in_prometheus_becomes_a_challenger(
    prometheus: str, config: Path, tmp_path: Path
) -> None:
    forecast = ["--objective", "violation", "--no-gate"]
    done = RUNNER.invoke(
        app,
        ["run", "--since", "20m", *forecast, "--config", str(config), "--prometheus", prometheus],
    )
    assert done.exit_code == 0, done.output
    assert "to serve it: trimtab models promote 1 --reason TEXT" in done.stdout
    assert "version 1 is @challenger: validation loss" in done.stdout
    (version,) = Registry(RegistryLocation(f"sqlite:///{tmp_path}/mlflow.db")).versions()
    assert version.aliases == ("challenger",)
    assert version.metrics["examples"] > 150
    assert version.metrics["validation_loss"] < version.metrics["constant_loss"]


@pytest.mark.system
def test_too_short_a_history_says_how_much_is_needed(prometheus: str, config: Path) -> None:
    failed = RUNNER.invoke(
        app,
        ["run", "--since", "2m", "--no-gate", "--config", str(config), "--prometheus", prometheus],
    )
    assert failed.exit_code == 1
    assert "120 s of history give 12 examples" in failed.stderr
    assert "longer --since" in failed.stderr


def test_prometheus_that_does_not_answer_is_unavailable(config: Path, unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    failed = RUNNER.invoke(
        app, ["run", "--since", "20m", "--config", str(config), "--prometheus", url]
    )
    assert failed.exit_code == 3
    assert url in failed.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--since", "soon"],
        ["--since", "20m", "--config", "/no/such/file.yaml"],
        ["--since", "20m", "--promote", "--no-gate"],
        ["--since", "20m", "--gate-pairs", "19"],
        ["--since", "20m", "--objective", "luck"],
    ],
)
def test_missing_input_is_a_usage_error(arguments: list[str]) -> None:
    assert RUNNER.invoke(app, ["run", *arguments]).exit_code == 2


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400), ("7d", 604_800)]
)
def test_duration_is_a_number_with_a_unit(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["30", "m", "0m", "4s", "367d", "9" * 400 + "d", "-5m", ""])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="write 90s, 30m, 12h or 7d"):
        duration_s(text)
