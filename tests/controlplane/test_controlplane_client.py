"""The blocking client against a real loopback server."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from door import Door

from controlplane.client import WeightsClient
from controlplane.errors import CallRefused, ControlPlaneAway, NoSuchSnapshot
from controlplane.snapshot import ClassDecision, Decision, Discipline, Feature, Mode, Plan
from protos.trimtab.v1 import weights_pb2
from protos.trimtab.v1.weights_pb2_grpc import (
    WeightsServiceServicer,
    add_WeightsServiceServicer_to_server,
)

PLAN = Plan(
    Mode.LEARNED,
    "champion 3",
    (
        ClassDecision("vip", 0.7, 0.6, 0.1, (Feature("demand", None),), ("step",)),
        ClassDecision("batch", 0.3, 0.4, -0.1, (Feature("demand", 0.5),)),
    ),
    model_version="3",
    window_end_unix_s=1_700_000_000.0,
)


def test_snapshot_out_of_its_ranges_is_refused() -> None:
    class Careless(WeightsServiceServicer):
        def GetWeights(self, *_: object) -> weights_pb2.Snapshot:  # noqa: N802 - the protocol's
            return weights_pb2.Snapshot(
                version=1,
                mode=weights_pb2.MODE_RULE,
                discipline=weights_pb2.DISCIPLINE_APQ,
                classes=[weights_pb2.ClassPolicy(late=weights_pb2.LATE_POLICY_SERVE)],  # no SLO
            )

    server = grpc.server(ThreadPoolExecutor(1))
    add_WeightsServiceServicer_to_server(Careless(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    with WeightsClient(address) as client, pytest.raises(CallRefused, match="ttft_s"):
        client.get()
    server.stop(None).wait()


async def test_snapshot_and_decision_arrive_as_they_were_published(door: Door) -> None:
    published = await door.publisher.publish(PLAN)
    with WeightsClient(door.address) as client:
        assert await asyncio.to_thread(client.get) == published
        assert await asyncio.to_thread(client.explain, 1) == Decision(1, 7, PLAN)
        with pytest.raises(NoSuchSnapshot, match="version 99"):
            await asyncio.to_thread(client.explain, 99)


async def test_watch_gives_each_newer_snapshot_and_ends_with_the_control_plane(door: Door) -> None:
    await door.publisher.publish(PLAN)
    with WeightsClient(door.address) as client:
        watch = client.watch()
        first = await asyncio.to_thread(next, watch)
        await door.publisher.publish(PLAN)
        second = await asyncio.to_thread(next, watch)
        assert (first.version, second.version) == (1, 2)
        door.broadcast.close()
        assert await asyncio.to_thread(next, watch, None) is None


async def test_watch_ends_when_its_client_hangs_up(door: Door) -> None:
    await door.publisher.publish(PLAN)
    client = WeightsClient(door.address)
    watch = client.watch()
    assert (await asyncio.to_thread(next, watch)).version == 1
    waiting = asyncio.create_task(asyncio.to_thread(next, watch, None))
    await asyncio.sleep(0.1)
    client.close()
    assert await waiting is None


async def test_watcher_that_leaves_frees_its_place(door: Door) -> None:
    await door.publisher.publish(PLAN)
    with WeightsClient(door.address) as client:
        watch = client.watch()
        await asyncio.to_thread(next, watch)
        watch.close()
        async with asyncio.timeout(10.0):
            while door.broadcast.listeners:  # noqa: ASYNC110 - the server sets no event here
                await asyncio.sleep(0.01)


async def test_discipline_changes_at_once_and_stays(door: Door) -> None:
    await door.publisher.publish(PLAN)
    with WeightsClient(door.address) as client:
        version = await asyncio.to_thread(
            lambda: client.set_discipline(Discipline.FCFS, actor="ada", reason="compare")
        )
        snapshot = await asyncio.to_thread(client.get)
        assert (version, snapshot.version, snapshot.discipline) == (2, 2, Discipline.FCFS)
        later = await door.publisher.publish(PLAN)
        assert later.discipline is Discipline.FCFS
        status = await asyncio.to_thread(client.status)
    assert (status.epoch, status.version, status.discipline) == (7, 3, Discipline.FCFS)
    assert (status.mode, status.model_version, status.missed_windows) == (Mode.LEARNED, "3", 4)
    assert status.engines == ()


@pytest.mark.parametrize(("actor", "reason", "named"), [(" ", "x", "actor"), ("x", "", "reason")])
async def test_change_without_actor_or_reason_is_refused(
    door: Door, actor: str, reason: str, named: str
) -> None:
    await door.publisher.publish(PLAN)
    with WeightsClient(door.address) as client, pytest.raises(CallRefused, match=named):
        await asyncio.to_thread(
            lambda: client.set_discipline(Discipline.FCFS, actor=actor, reason=reason)
        )
    assert door.publisher.discipline is Discipline.APQ


async def test_nothing_published_yet_reads_as_away(door: Door) -> None:
    with WeightsClient(door.address) as client:
        for call in (client.get, client.status):
            with pytest.raises(ControlPlaneAway, match="nothing is published yet"):
                await asyncio.to_thread(call)


def test_nobody_there_is_an_error_with_the_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            WeightsClient(address, timeout_s=2.0) as client,
            pytest.raises(ControlPlaneAway, match=address),
        ):
            client.get()
