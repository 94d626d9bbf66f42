"""The plugin's own stream follows the server."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from benchmarks.errors import PolicyNotApplied
from benchmarks.sim.fidelity import policy_snapshot
from benchmarks.stack.snapshot_server import SnapshotServer
from dataplane.clock import Clock
from dataplane.faults import FaultBarrier
from dataplane.state import EngineState
from dataplane.subscriber import Identity, Subscriber, TableInForce
from models.classes import Slo, TaskClass
from training.simulator.policies import POLICIES

CLASSES = (TaskClass("a", Slo(ttft_s=1.0), value=3.0), TaskClass("b", Slo(ttft_s=2.0)))


@contextmanager
def following(address: str) -> Iterator[TableInForce]:
    in_force = TableInForce()
    subscriber = Subscriber(
        control_plane=address,
        identity=Identity("engine-1", "0.1", "0.32"),
        in_force=in_force,
        state=EngineState,
        barrier=FaultBarrier(),
        clock=Clock(),
        report_interval_s=0.05,
    )
    subscriber.start()
    try:
        yield in_force
    finally:
        subscriber.stop()


def test_a_published_policy_is_in_force_when_the_call_returns() -> None:
    with SnapshotServer() as server, following(server.address) as in_force:
        for name in ("strict", "fcfs", "apq-uniform"):
            server.publish(name, policy_snapshot(POLICIES[name], CLASSES))
            table = in_force.at(0.0)
            assert table.discipline.value == POLICIES[name].discipline.value
        assert table.policy("a").weight == table.policy("b").weight == 0.5


def test_an_engine_that_refuses_a_policy_ends_the_measurement() -> None:
    refused = replace(policy_snapshot(POLICIES["apq"], CLASSES), ttl_s=-1.0)
    with SnapshotServer() as server, following(server.address):
        with pytest.raises(PolicyNotApplied, match="ttl_s"):
            server.publish("apq", refused)
        server.publish("apq", policy_snapshot(POLICIES["apq"], CLASSES))


def test_without_an_engine_nothing_is_measured() -> None:
    with (
        SnapshotServer(answer_timeout_s=0.2) as server,
        pytest.raises(PolicyNotApplied, match="no answer"),
    ):
        server.publish("apq", policy_snapshot(POLICIES["apq"], CLASSES))
