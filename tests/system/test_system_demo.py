"""`trimtab demo`, as a user runs it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.system

DEMO = [sys.executable, "-m", "cli", "demo"]


def _ours(tmp_path: Path) -> list[str]:
    """Command lines of processes that work below this test's TMPDIR."""
    lines = [
        " ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])
    ]
    return [line for line in lines if str(tmp_path) in line]


def _env(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(tmp_path)}


@pytest.mark.timeout(600)
def test_a_short_demo_ends_with_its_tables_and_leaves_no_process(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    argv = [*DEMO, "--duration", "40", "--json", str(results), "--mlruns", str(tmp_path / "mlruns")]
    done = subprocess.run(
        argv, capture_output=True, text=True, env=_env(tmp_path), timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "goodput" in done.stdout
    document = json.loads(results.read_text())
    assert document["snapshots_applied"] > 0
    assert document["model_version"] == "1"
    for policy in ("fcfs", "learned"):
        assert document["policies"][policy]["failed"] == 0
        assert sum(each["n"] for each in document["policies"][policy]["classes"].values()) > 0
    assert _ours(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    argv = [*DEMO, "--mlruns", str(tmp_path / "mlruns")]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_env(tmp_path)
    ) as demo:
        deadline_s = time.monotonic() + 120
        while not any("api_server" in line for line in _ours(tmp_path)):
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
        demo.send_signal(number)
        output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130, output
    assert _ours(tmp_path) == []
