"""The whole control plane as a process: real MLflow, Prometheus and gRPC."""

import contextlib
import itertools
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import grpc
import httpx
import pytest
from engine_exporter import CLASSES, EngineMetrics
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from benchmarks.stack.process import ChildProcess, free_port
from benchmarks.stack.prometheus import PrometheusServer
from controlplane.client import WeightsClient
from controlplane.errors import ClientError, NoSuchSnapshot
from controlplane.snapshot import Decision, Discipline, Mode, Snapshot
from controlplane.store.sqlite import SqliteStore
from protos.trimtab.v1 import weights_pb2
from protos.trimtab.v1.weights_pb2_grpc import WeightsServiceStub

pytestmark = pytest.mark.system

PATIENCE_S = 180.0


@dataclass
class Site:
    """A configuration on disk and the ports in it."""

    config: Path
    address: str
    metrics_url: str
    tracking_uri: str

    def serve(self) -> ChildProcess:
        argv = [sys.executable, "-m", "cli", "serve", "--config", str(self.config)]
        return ChildProcess("trimtab serve", argv, log=self.config.with_suffix(".log"))

    def metric(self, line_start: str) -> float:
        text = httpx.get(self.metrics_url).text
        (line,) = [line for line in text.splitlines() if line.startswith(line_start)]
        return float(line.rsplit(" ", 1)[1])


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return _site(tmp_path, prometheus_url="http://127.0.0.1:1")


@pytest.fixture
def engine() -> Iterator[EngineMetrics]:
    exporter = EngineMetrics()
    yield exporter
    exporter.close()


def _site(folder: Path, *, prometheus_url: str) -> Site:
    port, metrics_port = free_port(), free_port()
    tracking_uri = f"sqlite:///{folder / 'mlflow.db'}"
    config = folder / "trimtab.yaml"
    document = {
        "listen": f"127.0.0.1:{port}",
        "metrics_listen": f"127.0.0.1:{metrics_port}",
        "tick_s": 1,
        "ttl_s": 10,
        "prometheus": {"url": prometheus_url, "scrape_interval_s": 1, "timeout_s": 0.9},
        "store": {"path": str(folder / "trimtab.db")},
        "registry": {
            "tracking_uri": tracking_uri,
            "artifact_root": str(folder / "artifacts"),
            "poll_s": 1,
        },
        "guardrails": {"static_after_missed": 60},
        "classes": {
            "vip": {"slo": {"ttft_s": 0.5}, "value": 8},
            "batch": {"slo": {"ttft_s": 60}, "floor": 0.05},
        },
    }
    config.write_text(json.dumps(document))
    address = f"127.0.0.1:{port}"
    return Site(config, address, f"http://127.0.0.1:{metrics_port}/metrics", tracking_uri)


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.2)


def _snapshot(client: WeightsClient) -> Snapshot | None:
    try:
        return client.get()
    except ClientError:
        return None


def _seen(client: WeightsClient, what: Callable[[Snapshot], bool]) -> Snapshot:
    """Wait for a snapshot of a kind."""
    found: list[Snapshot] = []

    def look() -> bool:
        snapshot = _snapshot(client)
        if snapshot is not None and what(snapshot):
            found.append(snapshot)
        return bool(found)

    _until(look, "no such snapshot")
    return found[0]


def test_whole_life(tmp_path: Path, engine: EngineMetrics) -> None:
    prometheus = PrometheusServer(tmp_path / "prometheus", [f"127.0.0.1:{engine.port}"])
    site = _site(tmp_path, prometheus_url=prometheus.url)
    with prometheus.child, WeightsClient(site.address) as client:
        prometheus.wait_ready()
        with site.serve() as process:
            first = _seen(client, lambda _: True)
            assert first.mode in {Mode.STATIC, Mode.RULE}  # MLflow is not even imported yet
            assert [policy.task_class.name for policy in first.classes] == list(CLASSES)

            learned = _seen(client, lambda snapshot: snapshot.mode is Mode.LEARNED)
            assert learned.model_version == "1"
            decision = client.explain(learned.version)
            assert all(one.features for one in decision.plan.classes)
            assert site.metric('trimtab_controlplane_model_info{version="1"}') == 1

            _promote_another(site)
            swapped = _seen(client, lambda snapshot: snapshot.model_version == "2")
            assert swapped.epoch == first.epoch  # without a restart

            with _connected_engine(site.address):
                watch = "new champion 2 watched against 1, the one before"
                _until(lambda: watch in (client.status().canary or ""), "the new one is watched")

            fcfs = client.set_discipline(Discipline.FCFS, actor="test", reason="to see it stay")
            _seen(client, lambda snapshot: snapshot.version > fcfs)
            last = client.get()
            process.kill()
        assert _snapshot(client) is None
        with site.serve():
            after = _seen(client, lambda _: True)
            assert after.version > last.version
            assert after.epoch > last.epoch
            restarted = _first_of(client, last.version + 1, after.version)
            assert restarted.plan.mode is Mode.HOLD  # a quick restart keeps the weights
            assert after.discipline is Discipline.FCFS
            again = _seen(client, lambda snapshot: snapshot.mode is Mode.LEARNED)
            assert again.model_version == "2"


@contextlib.contextmanager
def _connected_engine(address: str) -> Iterator[None]:
    """One that says who it is, and no more."""
    said: SimpleQueue[weights_pb2.EngineMessage] = SimpleQueue()
    said.put(weights_pb2.EngineMessage(hello=weights_pb2.Hello(engine_id="engine-1")))
    with grpc.insecure_channel(address) as channel:
        call = WeightsServiceStub(channel).StreamWeights(iter(said.get, None))
        yield
        call.cancel()
        said.put(weights_pb2.EngineMessage())  # lets gRPC's own thread go


def _first_of(client: WeightsClient, low: int, high: int) -> Decision:
    """The first published version in a range; a restart may skip some."""
    for version in range(low, high + 1):
        with contextlib.suppress(NoSuchSnapshot):
            return client.explain(version)
    pytest.fail(f"nothing published from {low} to {high}")


def _promote_another(site: Site) -> None:
    """As a training process would."""
    script = f"""
from models.bundle import Bundle
from models.registry import Registry, RegistryLocation, RunRecord
registry = Registry(RegistryLocation({site.tracking_uri!r}))
version = registry.register(Bundle.untrained(seed=1), alias=None, run=RunRecord("test"))
registry.promote(version, actor="test", reason="another one")
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_nothing_around_it_yet_it_serves_and_says_why(site: Site) -> None:
    database = site.config.parent / "mlflow.db"
    database.write_text("this is no database " * 100)
    with site.serve() as process, WeightsClient(site.address) as client:
        first = _seen(client, lambda _: True)
        assert first.mode is Mode.STATIC
        missed = _seen(client, lambda snapshot: "Connection refused" in snapshot.mode_reason)
        assert missed.mode is Mode.STATIC
        assert {policy.weight for policy in missed.classes} == {
            policy.default_weight for policy in missed.classes
        }
        _until(
            lambda: site.metric("trimtab_controlplane_champion_failures_total") > 0,
            "the registry that is no database is counted",
        )
        assert site.metric('trimtab_controlplane_mode{mode="static"}') == 1
        before = site.metric("trimtab_controlplane_snapshot_version")
        _until(lambda: site.metric("trimtab_controlplane_snapshot_version") > before, "it ticks on")
        _check_health_and_reflection(site.address)
        process._signal_group(signal.SIGTERM)
        _until(lambda: not process.running, "it stops on SIGTERM")
        assert process._process.returncode == 0
    last = _stored_version(site)
    with site.serve(), WeightsClient(site.address) as client:
        _seen(client, lambda _: True)
        assert "restarted" in client.explain(last + 1).plan.mode_reason  # none is skipped


def _stored_version(site: Site) -> int:
    store = SqliteStore(site.config.parent / "trimtab.db", retention=1000)
    head = store.head()
    store.close()
    assert head is not None
    assert head.clean_stop
    return head.snapshot.version


def _check_health_and_reflection(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "trimtab.v1.WeightsService", "trimtab.v1.AdminService"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        database = ProtoReflectionDescriptorDatabase(channel)
        assert {"trimtab.v1.WeightsService", "trimtab.v1.AdminService"} <= set(
            database.get_services()
        )
        service = DescriptorPool(database).FindServiceByName("trimtab.v1.WeightsService")
        assert "StreamWeights" in service.methods_by_name


def test_doctor_names_what_is_wrong_and_what_to_do(site: Site) -> None:
    taken_port = int(site.address.rpartition(":")[2])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", taken_port))
        taken.listen()
        result = subprocess.run(
            [sys.executable, "-m", "cli", "doctor", "--config", str(site.config)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    verdicts = {line.split(":")[0] for line in lines if not line.startswith(" ")}
    assert "fail prometheus" in verdicts
    assert "warn champion" in verdicts  # a new registry is empty, and that is no failure
    assert "warn control plane" in verdicts
    assert "fail listen" in verdicts
    assert "ok   metrics_listen" in verdicts
    assert all("fix:" in after for line, after in itertools.pairwise(lines)
               if line.startswith(("fail", "warn")))  # fmt: skip
