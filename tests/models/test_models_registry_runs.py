"""What MLflow holds of a retraining: on SQLite, and on a server."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from models.bundle import Bundle
from models.errors import UnknownVersion
from models.registry import CHALLENGER, Registry, RegistryLocation
from models.registry_runs import patient
from models.versions import DatasetRecord, RunRecord

pytestmark = pytest.mark.system

GATES = (
    RunRecord("gate: schema", metrics={"passed": 1.0}, tags={"trimtab.reason": "same hash"}),
    RunRecord("gate: replay", metrics={"passed": 0.0, "loss_ratio": 1.03}, passed=False),
)
RETRAINING = RunRecord(
    "violation-forecast",
    params={f"fit.option_{number}": number for number in range(120)},
    metrics={"validation_loss": 0.25, "regime.flash-crowd.model_loss": 0.2},
    epochs=[{"train_loss": 1.0 / (1 + epoch), "validation_loss": 0.3} for epoch in range(700)],
    tags={"trimtab.gates": "failed"},
    description="Hold-out loss 0.25; gates failed.",
    files={"plots/loss.png": b"a picture"},
    dataset=DatasetRecord(
        "windows 1 to 2", "http://127.0.0.1:9090", "d1ge57", {"calibration_hash": "cafe"}
    ),
    children=GATES,
)


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> RegistryLocation:
    return RegistryLocation(f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db")


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, unused_tcp_port_factory: Callable[[], int]
) -> Iterator[RegistryLocation]:
    """An MLflow server on loopback, which keeps the artifacts as well."""
    folder = tmp_path_factory.mktemp("server")
    port = unused_tcp_port_factory()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
                *("--host", "127.0.0.1", "--port", str(port)),
                *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
                *("--artifacts-destination", f"{folder}/files"),
            ],
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", process, folder / "log")
        yield RegistryLocation(f"http://127.0.0.1:{port}")
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if requests.get(f"{url}/health", timeout=2).ok:
                return
        except requests.RequestException:
            pass
        time.sleep(0.5)
    pytest.fail(f"the MLflow server did not start: {log.read_text()[-2000:]}")


def client_of(location: RegistryLocation) -> Any:
    import mlflow  # noqa: PLC0415 - takes seconds

    return mlflow.MlflowClient(location.tracking_uri, location.tracking_uri)


@pytest.fixture(params=["sqlite", "server"])
def location(request: pytest.FixtureRequest) -> RegistryLocation:
    where: RegistryLocation = request.getfixturevalue(request.param)
    return where


def test_retraining_is_one_run_with_its_gates_under_it(location: RegistryLocation) -> None:
    registry = Registry(location)
    version = registry.register(Bundle.untrained(4), alias=CHALLENGER, run=RETRAINING)
    client = client_of(location)
    stored = client.get_model_version(location.model_name, version)
    run = client.get_run(stored.run_id)

    assert run.info.status == "FINISHED"
    assert len(run.data.params) == 120 + 2
    assert run.data.metrics == {
        "validation_loss": 0.25, "regime.flash-crowd.model_loss": 0.2,
        "train_loss": pytest.approx(1 / 700),
    }  # fmt: skip
    assert len(client.get_metric_history(stored.run_id, "train_loss")) == 700
    (artifact,) = client.list_artifacts(stored.run_id, "plots")
    assert artifact.path == "plots/loss.png"

    (told,) = run.inputs.dataset_inputs
    assert (told.dataset.name, told.dataset.digest) == ("windows 1 to 2", "d1ge57")
    assert "127.0.0.1:9090" in told.dataset.source
    assert {tag.key: tag.value for tag in told.tags} == {
        "mlflow.data.context": "training", "calibration_hash": "cafe",
    }  # fmt: skip

    children = client.search_runs(
        [run.info.experiment_id], f"tags.mlflow.parentRunId = '{stored.run_id}'"
    )
    outcomes = {child.info.run_name: child.info.status for child in children}
    assert outcomes == {"gate: schema": "FINISHED", "gate: replay": "FAILED"}

    assert stored.description == RETRAINING.description
    assert stored.tags["trimtab.gates"] == "failed"
    assert registry.load(version).provenance.seed == 4


def test_verdict_that_comes_later_is_a_child_as_well(location: RegistryLocation) -> None:
    registry = Registry(location)
    version = registry.register(Bundle.untrained(), alias=None, run=RunRecord("a-fit"))
    registry.attach(version, RunRecord("gate: canary", metrics={"passed": 1.0}))
    client = client_of(location)
    run_id = client.get_model_version(location.model_name, version).run_id
    experiment_id = client.get_run(run_id).info.experiment_id
    (child,) = client.search_runs([experiment_id], f"tags.mlflow.parentRunId = '{run_id}'")
    assert (child.info.run_name, child.data.metrics) == ("gate: canary", {"passed": 1.0})
    with pytest.raises(UnknownVersion):
        registry.attach("99", RunRecord("gate: canary"))


def test_run_of_a_promoted_version_says_why(location: RegistryLocation) -> None:
    registry = Registry(location)
    version = registry.register(Bundle.untrained(), alias=CHALLENGER, run=RunRecord("a-fit"))
    registry.promote(version, actor="ada", reason="lower loss on flash-crowd")
    client = client_of(location)
    run = client.get_run(client.get_model_version(location.model_name, version).run_id)
    assert run.data.tags["promotion.reason"] == "lower loss on flash-crowd"
    assert run.data.tags["promotion.actor"] == "ada"


def test_store_that_another_process_writes_to_is_waited_for(tmp_path: Path) -> None:
    registry = Registry(RegistryLocation(f"sqlite:///{tmp_path}/mlflow.db"))
    registry.register(Bundle.untrained(), alias=None, run=RunRecord("first"))
    writer = sqlite3.connect(tmp_path / "mlflow.db", check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    released = threading.Event()

    def release() -> None:
        released.set()
        writer.rollback()

    timer = threading.Timer(3.0, release)
    timer.start()
    version = registry.register(Bundle.untrained(), alias=CHALLENGER, run=RunRecord("second"))
    assert released.is_set()
    timer.join()
    writer.close()
    assert [one.version for one in registry.versions()] == [version, "1"]


def test_locked_store_is_asked_again_and_a_broken_one_is_not() -> None:
    answers = ["database is locked", "database is locked", "no such table"]
    asked = []

    @patient
    def ask() -> None:
        asked.append(1)
        raise OSError(answers[len(asked) - 1])

    with pytest.raises(OSError, match="no such table"):
        ask()
    assert len(asked) == 3
