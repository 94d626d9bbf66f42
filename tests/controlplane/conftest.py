"""A publisher on a real store, and a gRPC server on loopback in front of it."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from door import Door
from fleet import Fleet
from memory_registry import MemoryRegistry
from stream_engine import StreamEngine
from virtual_clock import VirtualClock

from controlplane.admin import AdminDesk
from controlplane.broadcast import Broadcast
from controlplane.canary import TrialLimits, TrialPolicy
from controlplane.clock import SystemClock
from controlplane.dither import OFF
from controlplane.forecaster import Forecaster
from controlplane.guardrails import Bounds, default_shares
from controlplane.hotswap import ChampionWatch
from controlplane.loop import ControlLoop
from controlplane.metrics import Metrics
from controlplane.modes import MissLimits, Standing
from controlplane.pilot import Pilot
from controlplane.publisher import FleetPolicy, Publisher
from controlplane.push import PushService
from controlplane.registry_thread import RegistryThread
from controlplane.restart import Lineage
from controlplane.snapshot import ClassRule, Discipline, Mode
from controlplane.status import EngineStatus
from controlplane.store.sqlite import SqliteStore
from controlplane.trials import Trials
from models.classes import LatePolicy, Slo, TaskClass
from protos.trimtab.v1.admin_pb2_grpc import add_AdminServiceServicer_to_server
from protos.trimtab.v1.weights_pb2_grpc import (
    WeightsServiceStub,
    add_WeightsServiceServicer_to_server,
)

CLASSES = (
    TaskClass("vip", Slo(0.5, tpot_s=0.1), value=8.0, late=LatePolicy.DEMOTE),
    TaskClass("batch", Slo(60.0), value=2.0, floor=0.05, max_wait_s=120.0),
)


@pytest.fixture
def task_classes() -> tuple[TaskClass, ...]:
    return CLASSES


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "trimtab.db", retention=1000)
    yield opened
    opened.close()


@pytest.fixture
def broadcast() -> Broadcast:
    return Broadcast()


@pytest.fixture
def publisher(
    store: SqliteStore, broadcast: Broadcast, clock: VirtualClock, metrics: Metrics
) -> Publisher:
    policy = FleetPolicy(
        task_classes=CLASSES,
        default_weights=tuple(default_shares(CLASSES).tolist()),
        rules=(ClassRule("batch", min_prompt_tokens=4096),),
        ttl_s=30.0,
    )
    return Publisher(
        policy=policy,
        lineage=Lineage(epoch=7, last_version=0),
        discipline=Discipline.APQ,
        store=store,
        broadcast=broadcast,
        clock=clock,
        metrics=metrics,
    )


@pytest.fixture
def forecaster(task_classes: tuple[TaskClass, ...]) -> Forecaster:
    return Forecaster(task_classes)


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


@pytest.fixture
def new_trials(
    *,
    task_classes: tuple[TaskClass, ...],
    registry: MemoryRegistry,
    forecaster: Forecaster,
    publisher: Publisher,
    store: SqliteStore,
    clock: VirtualClock,
    metrics: Metrics,
) -> Callable[[Callable[[], tuple[EngineStatus, ...]]], Trials]:
    """Of the engines that are connected."""

    def trials(engines: Callable[[], tuple[EngineStatus, ...]]) -> Trials:
        return Trials(
            policy=TrialPolicy(
                ratio=0.3,
                block_s=4.0,
                washout_s=1.0,
                limits=TrialLimits(alpha=0.05, margin=0.5, max_pairs=40),
                watch_s=3600.0,
            ),
            task_classes=task_classes,
            registry=RegistryThread(lambda: registry),
            serving=forecaster,
            new_pilot=lambda shares: Pilot(
                task_classes, bounds=Bounds(), dither=OFF, shares=shares
            ),
            engines=engines,
            publisher=publisher,
            store=store,
            clock=clock,
            metrics=metrics,
        )

    return trials


@pytest.fixture
def trials(new_trials: Callable[[Callable[[], tuple[EngineStatus, ...]]], Trials]) -> Trials:
    """Of no engine."""
    return new_trials(lambda: ())


@pytest_asyncio.fixture
async def door(publisher: Publisher, broadcast: Broadcast, metrics: Metrics) -> AsyncIterator[Door]:
    push = PushService(
        broadcast=broadcast,
        publisher=publisher,
        max_streams=3,
        answer_timeout_s=0.5,
        clock=SystemClock(),
        metrics=metrics,
    )
    desk = AdminDesk(publisher=publisher, engines=lambda: push.engines, missed_windows=lambda: 4)
    server = grpc.aio.server()
    add_WeightsServiceServicer_to_server(push, server)
    add_AdminServiceServicer_to_server(desk, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield Door(f"127.0.0.1:{port}", push, desk, publisher, broadcast, metrics)
    broadcast.close()
    await server.stop(None)


@pytest.fixture
def late_ratio() -> dict[str, float]:
    """Part of the requests that is late under a version's weights."""
    return {"1": 0.4, "harmful": 0.95, "fine": 0.1, "same": 0.4}


@pytest_asyncio.fixture
async def new_fleet(
    *,
    door: Door,
    clock: VirtualClock,
    forecaster: Forecaster,
    registry: MemoryRegistry,
    new_trials: Callable[[Callable[[], tuple[EngineStatus, ...]]], Trials],
    task_classes: tuple[TaskClass, ...],
    publisher: Publisher,
    store: SqliteStore,
    metrics: Metrics,
    late_ratio: dict[str, float],
) -> AsyncIterator[Callable[[int], Fleet]]:
    fleets: list[Fleet] = []

    async with grpc.aio.insecure_channel(door.address) as channel:
        stub = WeightsServiceStub(channel)

        def build(engines: int) -> Fleet:
            trials = new_trials(lambda: door.push.engines)

            def new_loop(fleet: Fleet) -> ControlLoop:
                pilot = Pilot(
                    task_classes, bounds=Bounds(), dither=OFF, shares=default_shares(task_classes)
                )
                return ControlLoop(
                    task_classes=task_classes,
                    fetch=fleet.fetch,
                    forecaster=forecaster,
                    publisher=publisher,
                    limits=MissLimits(hold_after_missed=2, static_after_missed=6),
                    pilot=pilot,
                    tick_s=60.0,
                    standing=Standing(Mode.STATIC, "first start, no window yet"),
                    clock=clock,
                    metrics=metrics,
                    trials=trials,
                )

            fleets.append(
                Fleet(
                    door=door,
                    clock=clock,
                    watch=ChampionWatch(
                        registry=RegistryThread(lambda: registry),
                        forecaster=forecaster,
                        publisher=publisher,
                        metrics=metrics,
                    ),
                    trials=trials,
                    store=store,
                    new_loop=new_loop,
                    engines=[
                        StreamEngine(stub, f"engine-{number}", late_ratio)
                        for number in range(1, engines + 1)
                    ],
                )
            )
            return fleets[-1]

        yield build
        for fleet in fleets:
            for engine in fleet.engines:
                await engine.leave()
            fleet.close()
