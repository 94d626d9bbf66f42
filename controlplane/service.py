"""The control plane as a whole: what is built of what, and in which order it starts and stops.

Start: store, first snapshot, servers; then the tick and the model registry, both
of which may take their time. The first snapshot goes out before any of the slow
parts is even imported, so that engines learn their classes at once.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from controlplane.admin import AdminDesk
from controlplane.broadcast import Broadcast
from controlplane.clock import Clock, SystemClock
from controlplane.dither import Dither
from controlplane.errors import AddressInUse
from controlplane.forecaster import Forecaster
from controlplane.guardrails import Shares, default_shares
from controlplane.hotswap import ChampionWatch
from controlplane.loop import ControlLoop, run_every
from controlplane.metrics import Metrics, MetricsServer
from controlplane.pilot import Pilot
from controlplane.publisher import FleetPolicy, Publisher
from controlplane.push import PushService
from controlplane.registry_thread import RegistryThread
from controlplane.restart import StoredHead, continued, first_standing
from controlplane.store.sqlite import EventKind, SqliteStore
from controlplane.telemetry.source import PrometheusSource
from controlplane.telemetry.window import fetch_window
from controlplane.trials import Trials
from models.versions import RegistryLocation
from protos.trimtab.v1 import admin_pb2, weights_pb2
from protos.trimtab.v1.admin_pb2_grpc import add_AdminServiceServicer_to_server
from protos.trimtab.v1.weights_pb2_grpc import add_WeightsServiceServicer_to_server

if TYPE_CHECKING:  # importing the registry imports torch
    from collections.abc import Awaitable, Callable

    from controlplane.config import Config
    from models.registry import Registry
    from models.window import Window

log = structlog.get_logger(__name__)

_SERVICES = (
    weights_pb2.DESCRIPTOR.services_by_name["WeightsService"].full_name,
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name,
)
_DRAIN_S = 2.0
"""How long calls in flight may take once the process is to stop."""
_REGISTRY_GRACE_S = 8.0
"""How long a call to the registry may: the first migration of an empty store takes seconds."""


class ControlPlane:
    """Builds everything; `start`, then `stop`.

    Attributes:
        address: of the gRPC server, with the port that was really bound.
        metrics_address: of /metrics, likewise.

    Raises:
        StoreError: the store can't be opened.
    """

    def __init__(self, config: Config, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._metrics = Metrics()
        self._store = SqliteStore(config.store.path, config.store.retention_snapshots)
        self._store.claim()
        head = self._store.head()
        self._broadcast = Broadcast()
        self._publisher = self._build_publisher(head)
        self._source = PrometheusSource(
            config.prometheus.url,
            config.prometheus.timeout_s,
            config.prometheus.scrape_interval_s,
        )
        self._forecaster = Forecaster(config.task_classes)
        self._registry = RegistryThread(self._open_registry)
        self._watch = ChampionWatch(
            registry=self._registry,
            forecaster=self._forecaster,
            publisher=self._publisher,
            metrics=self._metrics,
        )
        self._push = PushService(
            broadcast=self._broadcast,
            publisher=self._publisher,
            max_streams=config.limits.max_streams,
            answer_timeout_s=config.limits.answer_timeout_s,
            clock=self._clock,
            metrics=self._metrics,
        )
        self._trials = self._build_trials()
        self._loop = self._build_loop(head)
        self._desk = AdminDesk(
            publisher=self._publisher,
            engines=lambda: self._push.engines,
            missed_windows=lambda: self._loop.standing.missed_windows,
            retrain_reason=lambda: self._loop.retrain_reason,
            canary=lambda: self._trials.status,
        )
        self._health = health.aio.HealthServicer()
        self._tasks: list[asyncio.Task[None]] = []
        self._server: grpc.aio.Server | None = None
        self._metrics_server: MetricsServer | None = None
        self.address = config.listen
        self.metrics_address = config.metrics_listen

    async def start(self) -> None:
        """Publish the first snapshot, open the doors, begin to tick.

        Raises:
            AddressInUse: one of the two addresses can't be bound.
        """
        config = self._config
        self._metrics_server = MetricsServer(config.metrics_listen, self._metrics.registry)
        self.metrics_address = self._metrics_server.address
        self._server = self._build_server()
        await self._publisher.record(EventKind.STARTED, f"epoch {self._publisher.epoch}")
        await self._loop.publish_first()
        await self._server.start()
        for service in ("", *_SERVICES):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        self._tasks = [
            self._repeat("tick", config.tick_s, self._loop.tick),
            self._repeat("champion", config.registry.poll_s, self._watch.poll),
        ]
        if config.canary.enabled:
            self._tasks.append(self._repeat("canary", config.registry.poll_s, self._trials.poll))
        log.info("serving", address=self.address, metrics=self.metrics_address)

    async def stop(self) -> None:
        """Close the doors, let calls finish, and leave the store in order."""
        await self._health.enter_graceful_shutdown()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._broadcast.close()
        if self._server is not None:
            await self._server.stop(_DRAIN_S)
        if self._metrics_server is not None:
            await asyncio.to_thread(self._metrics_server.close)
        await self._publisher.stop()
        await self._registry.close(_REGISTRY_GRACE_S)
        self._loop.close()
        self._source.close()
        self._store.close()
        log.info("stopped")

    def _repeat(
        self, name: str, period_s: float, step: Callable[[], Awaitable[None]]
    ) -> asyncio.Task[None]:
        failures = self._metrics.step_failures.labels(name)
        return asyncio.create_task(run_every(self._clock, period_s, step, failures.inc), name=name)

    def _build_publisher(self, head: StoredHead | None) -> Publisher:
        config = self._config
        policy = FleetPolicy(
            task_classes=config.task_classes,
            default_weights=tuple(default_shares(config.task_classes).tolist()),
            rules=config.class_rules,
            ttl_s=config.ttl_s,
        )
        return Publisher(
            policy=policy,
            lineage=continued(head, now_unix_s=self._clock.unix_s()),
            discipline=self._store.discipline() or config.discipline,
            store=self._store,
            broadcast=self._broadcast,
            clock=self._clock,
            metrics=self._metrics,
        )

    def _build_trials(self) -> Trials:
        config = self._config
        return Trials(
            policy=config.canary.policy,
            task_classes=config.task_classes,
            registry=self._registry,
            serving=self._forecaster,
            new_pilot=self._new_pilot,
            engines=lambda: self._push.engines,
            publisher=self._publisher,
            store=self._store,
            clock=self._clock,
            metrics=self._metrics,
        )

    def _new_pilot(self, shares: Shares) -> Pilot:
        config = self._config
        dither = Dither(**config.dither.model_dump())
        return Pilot(config.task_classes, bounds=config.bounds, dither=dither, shares=shares)

    def _build_loop(self, head: StoredHead | None) -> ControlLoop:
        config = self._config
        standing, shares = first_standing(
            head,
            config.task_classes,
            config.guardrails.miss_limits,
            now_unix_s=self._clock.unix_s(),
            tick_s=config.tick_s,
        )
        return ControlLoop(
            task_classes=config.task_classes,
            fetch=self._fetch,
            forecaster=self._forecaster,
            publisher=self._publisher,
            limits=config.guardrails.miss_limits,
            pilot=self._new_pilot(shares),
            tick_s=config.tick_s,
            standing=standing,
            clock=self._clock,
            metrics=self._metrics,
            trials=self._trials,
        )

    def _build_server(self) -> grpc.aio.Server:
        """Both services, health and reflection, bound but not started.

        Raises:
            AddressInUse: the address can't be bound.
        """
        server = grpc.aio.server(options=_server_options(self._config.limits.max_message_bytes))
        add_WeightsServiceServicer_to_server(self._push, server)
        add_AdminServiceServicer_to_server(self._desk, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            (*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        try:
            port = server.add_insecure_port(self._config.listen)
        except RuntimeError as error:
            raise AddressInUse(self._config.listen) from error
        self.address = f"{self._config.listen.rpartition(':')[0]}:{port}"
        return server

    def _fetch(self, end_unix_s: float) -> Window:
        return fetch_window(
            self._source,
            tuple(self._config.classes),
            end_unix_s=end_unix_s,
            staleness_s=self._config.prometheus.staleness_s,
        )

    def _open_registry(self) -> Registry:
        """Import, connect, and see to it that there is a first version."""
        import torch  # noqa: PLC0415 - takes seconds, and runs in a thread

        from models.registry import Registry  # noqa: PLC0415 - the same

        torch.set_num_threads(1)  # the network is small; the cores are the engines'
        settings = self._config.registry
        registry = Registry(
            RegistryLocation(settings.tracking_uri, settings.artifact_root, settings.model_name)
        )
        registry.ensure_first_version()
        return registry


async def serve(config: Config) -> None:
    """Run a control plane until SIGTERM or SIGINT.

    Raises:
        AddressInUse: an address can't be bound.
        StoreError: the store can't be opened.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    plane = ControlPlane(config)
    try:
        await plane.start()
        await stop.wait()
    finally:
        await plane.stop()


def _server_options(max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        # Without this, a second control plane on the same port would start without
        # an error and get every other connection.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", 20_000),  # finds engines that vanished
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),  # current gRPC reads this one
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # engines may look too
    ]
