"""What Prometheus sees, in one process and through vLLM's multi-process directory."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from loopback_control_plane import HandClock, class_policy, snapshot
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from dataplane.exporter import Exporter
from dataplane.faults import FaultBarrier
from dataplane.meter import Meter, Outcome
from dataplane.state import ClassState, EngineState
from dataplane.subscriber import TableInForce
from dataplane.subscriber.messages import decode_snapshot
from dataplane.ticket import Ticket

FAMILIES = {
    "trimtab_requests_arrived",
    "trimtab_requests_finished",
    "trimtab_prompt_tokens",
    "trimtab_generation_tokens",
    "trimtab_queue_time_seconds",
    "trimtab_ttft_seconds",
    "trimtab_tpot_seconds",
    "trimtab_e2e_seconds",
    "trimtab_waiting_requests",
    "trimtab_running_requests",
    "trimtab_waiting_past_slo_requests",
    "trimtab_oldest_wait_seconds",
    "trimtab_class_weight",
    "trimtab_preemptions",
    "trimtab_snapshot_version",
    "trimtab_snapshot_age_seconds",
    "trimtab_neutral",
    "trimtab_snapshots",
    "trimtab_plugin_faults",
    "trimtab_recomputed_tokens",
    "trimtab_weight_preemptions",
    "trimtab_weight_preemptions_refused",
    "trimtab_kv_reserved_blocks",
    "trimtab_kv_held_back",
    "trimtab_breaker_state",
    "trimtab_breaker_trips",
    "trimtab_breaker_refusals",
    "trimtab_capped_steps",
    "trimtab_withheld_prompt_tokens",
}
# Its series come once the steps of the engine are known.
STEP_TIME = "trimtab_step_time_coefficient_seconds"


class Bench:
    """An exporter and all that it looks at."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.meter = Meter()
        self.in_force = TableInForce()
        self.barrier = FaultBarrier()
        self.state = EngineState()
        self.exporter = Exporter(
            meter=self.meter,
            in_force=self.in_force,
            state=lambda: self.state,
            barrier=self.barrier,
            clock=HandClock(),
            interval_s=0.01,
            registry=self.registry,
        )

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def apply(self, version: int, *names: str, weight: float = 2.0, at_s: float = 0.0) -> None:
        classes = [class_policy(name, weight=weight) for name in names]
        self.in_force.offer(decode_snapshot(snapshot(version, classes=classes), at_s))

    def serve(self, task_class: str, *, first_token_s: float, end_s: float) -> None:
        ticket = Ticket("r", task_class, 0.0, prompt_tokens=5)
        self.meter.arrived(ticket)
        self.meter.dispatched(ticket, 0.0)
        self.meter.first_token(ticket, first_token_s)
        self.meter.generated(ticket, 5)
        self.meter.finished(ticket, Outcome.MET, end_s)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_every_class_of_a_snapshot_is_there_with_zeroes(bench: Bench) -> None:
    bench.apply(1, "chat", "batch")
    bench.exporter.flush(1.0)
    for name in ("chat", "batch"):
        assert bench.value("trimtab_requests_arrived_total", task_class=name) == 0
        assert bench.value("trimtab_ttft_seconds_count", task_class=name) == 0
        assert bench.value("trimtab_waiting_requests", task_class=name) == 0
        for outcome in ("met", "late", "failed", "aborted"):
            labels = {"task_class": name, "outcome": outcome}
            assert bench.value("trimtab_requests_finished_total", **labels) == 0


def test_the_families_are_those_of_the_documentation(bench: Bench) -> None:
    bench.apply(1, "chat")
    bench.exporter.flush(1.0)
    assert {family.name for family in bench.registry.collect()} == FAMILIES | {STEP_TIME}
    documented = Path("docs/architecture.md").read_text(encoding="utf-8")
    for family in (*FAMILIES, STEP_TIME):
        assert f"`{family}" in documented


def test_flushing_again_counts_nothing_twice(bench: Bench) -> None:
    bench.serve("chat", first_token_s=0.4, end_s=2.4)
    for now_s in (3.0, 4.0, 5.0):
        bench.exporter.flush(now_s)
    assert bench.value("trimtab_requests_arrived_total", task_class="chat") == 1
    assert bench.value("trimtab_generation_tokens_total", task_class="chat") == 5
    assert bench.value("trimtab_ttft_seconds_count", task_class="chat") == 1
    assert bench.value("trimtab_ttft_seconds_sum", task_class="chat") == pytest.approx(0.4)
    assert bench.value("trimtab_tpot_seconds_sum", task_class="chat") == pytest.approx(0.5)
    bench.serve("chat", first_token_s=1.0, end_s=2.0)
    bench.exporter.flush(6.0)
    assert bench.value("trimtab_requests_arrived_total", task_class="chat") == 2
    assert bench.value("trimtab_ttft_seconds_count", task_class="chat") == 2


def test_snapshot_age_is_absent_before_the_first_and_grows_afterwards(bench: Bench) -> None:
    bench.exporter.flush(5.0)
    assert bench.value("trimtab_snapshot_age_seconds") is None
    assert bench.value("trimtab_snapshot_version") == 0
    assert bench.value("trimtab_neutral") == 1
    bench.apply(7, "chat", at_s=10.0)
    ages = []
    for now_s in (11.0, 31.0, 90.0):
        bench.exporter.flush(now_s)
        ages.append(bench.value("trimtab_snapshot_age_seconds"))
    assert ages == [1.0, 21.0, 80.0]
    assert bench.value("trimtab_snapshot_version") == 7


def test_at_the_ttl_neutral_and_the_default_weight_show(bench: Bench) -> None:
    bench.apply(1, "chat", weight=9.0)
    bench.exporter.flush(60.0)
    assert bench.value("trimtab_class_weight", task_class="chat") == 9.0
    assert bench.value("trimtab_neutral") == 0
    bench.exporter.flush(60.1)
    assert bench.value("trimtab_class_weight", task_class="chat") == 1.0
    assert bench.value("trimtab_neutral") == 1


def test_the_oldest_wait_grows_while_the_engine_stands_still(bench: Bench) -> None:
    bench.state = EngineState(classes=(ClassState("chat", 3, 2, 1, oldest_arrival_s=10.0),))
    for now_s, wait_s in ((12.0, 2.0), (50.0, 40.0)):
        bench.exporter.flush(now_s)
        assert bench.value("trimtab_oldest_wait_seconds", task_class="chat") == wait_s
    assert bench.value("trimtab_waiting_requests", task_class="chat") == 3
    assert bench.value("trimtab_running_requests", task_class="chat") == 2
    assert bench.value("trimtab_waiting_past_slo_requests", task_class="chat") == 1


def test_snapshots_and_faults_are_counted(bench: Bench) -> None:
    bench.apply(1, "chat")
    bench.in_force.refused += 2
    with bench.barrier:
        raise RuntimeError("of the plugin")
    bench.exporter.flush(1.0)
    assert bench.value("trimtab_snapshots_total", result="applied") == 1
    assert bench.value("trimtab_snapshots_total", result="refused") == 2
    assert bench.value("trimtab_plugin_faults_total") == 1


def test_the_thread_flushes_by_itself_and_a_last_time_when_stopped(bench: Bench) -> None:
    bench.exporter.start()
    bench.serve("chat", first_token_s=0.1, end_s=0.2)
    deadline_s = time.monotonic() + 10.0
    while bench.value("trimtab_requests_arrived_total", task_class="chat") != 1:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    bench.exporter.stop()
    bench.serve("chat", first_token_s=0.1, end_s=0.2)
    assert bench.value("trimtab_requests_arrived_total", task_class="chat") == 1


def test_a_fault_while_flushing_is_counted_and_the_next_flush_goes_on(bench: Bench) -> None:
    good, bench.state = bench.state, None  # type: ignore[assignment] # what a fault leaves
    bench.exporter.start()
    deadline_s = time.monotonic() + 10.0
    while bench.barrier.faults < 2:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    bench.state = good
    bench.exporter.stop()
    assert bench.value("trimtab_plugin_faults_total") == bench.barrier.faults


ENGINE_CORE = """
from test_dataplane_exporter import Bench
bench = Bench()
bench.apply(3, "chat", weight={weight})
bench.serve("chat", first_token_s=0.1, end_s=0.2)
bench.exporter.flush({age_s})
"""


def test_several_engine_cores_behind_one_metrics_page_merge_into_one_series_per_class(
    tmp_path: Path,
) -> None:
    for weight, age_s in ((2.0, 5.0), (3.0, 6.0)):
        subprocess.run(
            [sys.executable, "-c", ENGINE_CORE.format(weight=weight, age_s=age_s)],
            env={
                **os.environ,
                "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
                "PYTHONPATH": os.pathsep.join(filter(None, [*sys.path, str(Path.cwd())])),
            },
            check=True,
        )
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))
    families = {family.name: family for family in registry.collect()}
    assert set(families) == FAMILIES
    assert not any("pid" in s.labels for family in families.values() for s in family.samples)

    def value(name: str, **labels: str) -> float:
        sample = registry.get_sample_value(name, labels)
        return math.nan if sample is None else sample

    assert value("trimtab_requests_arrived_total", task_class="chat") == 2
    assert value("trimtab_ttft_seconds_count", task_class="chat") == 2
    assert value("trimtab_class_weight", task_class="chat") == 3.0
    assert value("trimtab_snapshot_age_seconds") == 6.0
    assert value("trimtab_snapshot_version") == 3
