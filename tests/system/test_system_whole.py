"""Every part is real: vLLM, Prometheus, MLflow, gRPC, the `trimtab` command."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_tools import protoc
from live_system import TTL_S, patient, traffic

from benchmarks.demo.parts import Parts
from benchmarks.demo.scenario import CLASSES
from benchmarks.engine_metrics import EngineReading, read_engine
from benchmarks.stack.process import ChildProcess, answers_http, free_port
from controlplane.client import WeightsClient
from controlplane.snapshot import Discipline, Mode
from models.registry import Registry, RegistryLocation
from models.versions import RunRecord
from training.online.memory import CALIBRATION_FILE
from training.simulator.calibration import REFERENCE_ENGINE

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
CLASS_NAMES = {kind.name for kind in CLASSES}
PATIENCE_S = 60.0


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.2)


def _trimtab(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli", *args],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def _engine(parts: Parts) -> EngineReading:
    reading = read_engine(parts.engine.url)
    assert reading is not None
    return reading


def _explained(client: WeightsClient) -> set[str]:
    """Classes of the newest decision whose rule share is known."""
    decision = client.explain(client.get().version)
    return {part.task_class for part in decision.plan.classes if part.rule_share}


def _serving(parts: Parts) -> None:
    """Wait until the engine runs a fresh learned snapshot."""
    with WeightsClient(parts.control_plane.address) as client:
        _until(lambda: client.get().mode is Mode.LEARNED, "learned weights")
        published = client.get().version
    _until(lambda: (_engine(parts).snapshot_version or 0) >= published, "applied by the engine")


def test_measured_weights_reach_the_engine_and_every_request_is_answered(parts: Parts) -> None:
    _serving(parts)
    first = _engine(parts).snapshot_version or 0
    with traffic(parts, 8.0) as run:
        pass
    assert [answer.failure for answer in run.result().answers if answer.failure] == []
    with WeightsClient(parts.control_plane.address) as client:
        snapshot = client.get()
        assert {policy.task_class.name for policy in snapshot.classes} == CLASS_NAMES
        assert sum(policy.weight for policy in snapshot.classes) == pytest.approx(1.0)
        # A tick whose window came too late holds the weights, and explains nothing.
        _until(lambda: _explained(client) == CLASS_NAMES, "a decision with a rule share per class")
    _until(lambda: (_engine(parts).snapshot_version or 0) > first, "a newer snapshot")
    reading = _engine(parts)
    assert set(reading.weights) >= CLASS_NAMES
    assert set(reading.waiting) >= CLASS_NAMES
    assert (reading.snapshots_applied or 0) > 1


def test_class_metrics_show_in_the_engines_own_metrics(parts: Parts) -> None:
    with traffic(parts, 5.0) as run:
        pass
    asked = {answer.arrival.task_class for answer in run.result().answers}
    text = httpx.get(f"{parts.engine.url}/metrics").text
    for name in asked:
        for metric in ("requests_arrived_total", "prompt_tokens_total", "ttft_seconds_count"):
            lines = [
                line for line in text.splitlines()
                if line.startswith(f"trimtab_{metric}{{") and f'task_class="{name}"' in line
            ]  # fmt: skip
            assert len(lines) == 1, f"{metric} of {name}: {lines}"
            assert float(lines[0].rsplit(" ", 1)[1]) > 0


def _promote_a_bad_model(parts: Parts) -> str:
    """It gives the turns of those in a hurry to the others; nobody asked the gates."""
    registry = Registry(RegistryLocation(parts.control_plane.tracking_uri))
    bad = registry.register(patient(), alias=None, run=RunRecord("bad"))
    registry.promote(bad, actor="test", reason="by mistake", force=True)
    return bad


def _remember_slow_engines(state: Path) -> None:
    """The traffic of the test is as much as one of them can serve."""
    slow = REFERENCE_ENGINE.with_coefficients(2.4 * REFERENCE_ENGINE.coefficients, "assumed slow")
    state.mkdir()
    slow.save(state / CALIBRATION_FILE)


@pytest.mark.timeout(1200)  # on a busy machine its comparisons take minutes
def test_a_live_retraining_passes_its_gates_is_promoted_and_picked_up_in_mid_run(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The champion is a bad one, so that little history is enough to beat it beyond doubt."""
    _serving(parts)
    _remember_slow_engines(tmp_path / "state")
    monkeypatch.setenv("TRIMTAB_TRAINING__STATE", str(tmp_path / "state"))
    config = str(parts.control_plane.config)
    retrain = ("train", "run", "--since", "10m", "--min-examples", "2", "--config", config)
    small = ("--objective", "violation", "--fresh", "--gate-pairs", "20")
    with WeightsClient(parts.control_plane.address) as client, traffic(parts, 130.0) as run:
        bad = _promote_a_bad_model(parts)
        _until(lambda: client.get().model_version == bad, "the bad model serves")
        time.sleep(100.0)  # history to learn from, and to be judged on
        done = _trimtab(*retrain, *small, "--promote", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        trained = json.loads(done.stdout)
        assert (trained["outcome"], trained["promoted"]) == ("passed", True), trained["gates"]
        _until(lambda: client.get().model_version == trained["version"], "the new model serves")
        assert client.get().mode is Mode.LEARNED
    assert [answer.failure for answer in run.result().answers if answer.failure] == []

    trail = json.loads(_trimtab("models", "history", "--json", "--config", config).stdout)
    assert (trail[-1]["version"], trail[-1]["actor"]) == (trained["version"], "trimtab train")


def test_a_killed_control_plane_costs_no_request_and_comes_back_where_it_was(parts: Parts) -> None:
    _serving(parts)
    control_plane = parts.control_plane
    with traffic(parts, 3 * TTL_S) as run:
        with WeightsClient(control_plane.address) as client:
            before = client.get()
        control_plane.child.kill()
        _until(lambda: (_engine(parts).snapshot_age_s or 0) > TTL_S / 2, "the age grows")
        _until(lambda: _engine(parts).neutral is True, "neutral at the TTL")
        assert (_engine(parts).snapshot_age_s or 0) >= TTL_S
        control_plane.start_again()
        control_plane.wait_ready()
        _until(lambda: _engine(parts).neutral is False, "the engine recovers by itself")
        with WeightsClient(control_plane.address) as client:
            after = client.get()
    assert after.version > before.version
    assert after.epoch > before.epoch
    assert [answer.failure for answer in run.result().answers if answer.failure] == []


def test_fcfs_and_back_reaches_the_engine_and_survives_a_restart(parts: Parts) -> None:
    _serving(parts)
    with WeightsClient(parts.control_plane.address) as client:
        version = client.set_discipline(Discipline.FCFS, actor="test", reason="compare")
        _until(lambda: (_engine(parts).snapshot_version or 0) >= version, "fcfs applied")
    parts.control_plane.child.kill()
    parts.control_plane.start_again()
    parts.control_plane.wait_ready()
    with WeightsClient(parts.control_plane.address) as client:
        assert client.get().discipline is Discipline.FCFS
        client.set_discipline(Discipline.APQ, actor="test", reason="compared")
        assert client.get().discipline is Discipline.APQ


def test_the_command_line_shows_live_data(parts: Parts) -> None:
    _serving(parts)
    address = parts.control_plane.address
    got = _trimtab("weights", "get", "--address", address, "--json")
    assert got.returncode == 0, got.stderr
    snapshot = json.loads(got.stdout)
    assert snapshot["version"] > 0
    explained = _trimtab("explain", str(snapshot["version"]), "--address", address, "--json")
    assert explained.returncode == 0, explained.stderr
    assert json.loads(explained.stdout)["version"] == snapshot["version"]
    checked = _trimtab("doctor", "--config", str(parts.control_plane.config))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_discipline_is_switched_from_the_command_line(parts: Parts) -> None:
    _serving(parts)
    address = parts.control_plane.address
    for name in ("fcfs", "apq"):
        done = _trimtab("discipline", name, "--reason", "test", "--address", address)
        assert done.returncode == 0, done.stderr
        with WeightsClient(address) as client:
            assert client.get().discipline.value == name
    assert _trimtab("discipline", "fcfs", "--reason", " ", "--address", address).returncode == 2
    assert _trimtab("discipline", "lifo", "--reason", "x", "--address", address).returncode == 2


def test_watch_prints_each_newer_snapshot_until_it_is_interrupted(
    parts: Parts, tmp_path: Path
) -> None:
    _serving(parts)
    log = tmp_path / "watch.log"
    argv = [sys.executable, "-m", "cli", "weights", "watch", "--json"]
    with ChildProcess("watch", [*argv, "--address", parts.control_plane.address], log=log) as child:
        child.wait_ready(lambda: log.read_text().count("\n") >= 3, timeout_s=PATIENCE_S)
    versions = [json.loads(line)["version"] for line in log.read_text().splitlines()[:3]]
    assert versions == sorted(set(versions))


def test_a_plain_client_generated_from_the_protos_reads_the_weights(
    parts: Parts, tmp_path: Path
) -> None:
    """As a user would: protoc on the shipped files, nothing of Trimtab imported."""
    _serving(parts)
    protos = ROOT / "protos"
    files = ["trimtab/v1/weights.proto", "trimtab/v1/admin.proto"]
    argv = ["protoc", f"-I{protos}", f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}"]
    assert protoc.main([*argv, *files]) == 0
    script = f"""
import grpc
from trimtab.v1 import weights_pb2, weights_pb2_grpc
with grpc.insecure_channel("{parts.control_plane.address}") as channel:
    stub = weights_pb2_grpc.WeightsServiceStub(channel)
    snapshot = stub.GetWeights(weights_pb2.GetWeightsRequest(), timeout=10)
    print(snapshot.version, *sorted(policy.task_class for policy in snapshot.classes))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    version, *names = done.stdout.split()
    assert int(version) > 0
    assert set(names) == CLASS_NAMES


def test_mlflow_shows_the_models(parts: Parts, tmp_path: Path) -> None:
    """`mlflow ui` on the store: its own API lists the champion with signature and tags."""
    _serving(parts)
    port = free_port()
    argv = [sys.executable, "-m", "mlflow", "ui", "--port", str(port), "--workers", "1"]
    argv += ["--backend-store-uri", parts.control_plane.tracking_uri]
    with ChildProcess("mlflow", argv, log=tmp_path / "mlflow.log") as child:
        child.wait_ready(lambda: answers_http(f"http://127.0.0.1:{port}/health"), timeout_s=120)
        found = httpx.get(
            f"http://127.0.0.1:{port}/api/2.0/mlflow/registered-models/search", timeout=30
        ).json()
    (model,) = found["registered_models"]
    assert model["name"] == "trimtab-weights"
    assert "champion" in {alias["alias"] for alias in model["aliases"]}


def test_an_unknown_version_or_a_silent_control_plane_is_a_clear_error(parts: Parts) -> None:
    unknown = _trimtab("explain", "999999999", "--address", parts.control_plane.address)
    assert unknown.returncode == 2
    assert "999999999" in unknown.stderr
    silent = _trimtab("weights", "get", "--address", f"127.0.0.1:{free_port()}")
    assert silent.returncode == 3
    assert "fix:" in silent.stderr


def test_a_second_control_plane_on_the_same_store_is_refused(parts: Parts) -> None:
    refused = _trimtab("serve", "--config", str(parts.control_plane.config))
    assert refused.returncode == 2
    assert "store" in refused.stderr


def test_a_second_control_plane_on_the_same_port_is_refused(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_STORE__PATH", str(tmp_path / "other.db"))
    refused = _trimtab("serve", "--config", str(parts.control_plane.config))
    assert refused.returncode == 2
    taken = (parts.control_plane.address, parts.control_plane.metrics_address)
    assert any(f"{address} is in use" in refused.stderr for address in taken)


def test_health_and_reflection_answer(parts: Parts) -> None:
    with grpc.insecure_channel(parts.control_plane.address) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=10) == b"\x08\x01"  # status: SERVING
