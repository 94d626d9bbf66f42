"""WeightsService: snapshots out to engines and watchers, answers and reports in."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import structlog

from controlplane.broadcast import Broadcast
from controlplane.clock import Clock
from controlplane.errors import StoreError
from controlplane.metrics import Metrics
from controlplane.publisher import Publisher
from controlplane.session import Session, nonce_of
from controlplane.snapshot import Snapshot
from controlplane.status import EngineStatus
from controlplane.wire import decision_to_wire, report_from_wire, snapshot_to_wire
from protos.trimtab.v1 import weights_pb2
from protos.trimtab.v1.weights_pb2_grpc import WeightsServiceServicer

log = structlog.get_logger(__name__)

MAX_ENGINE_ID_CHARS = 128
Context = grpc.aio.ServicerContext[Any, Any]


class PushService(WeightsServiceServicer):
    """The servicer. All streams share one message per snapshot."""

    def __init__(
        self,
        *,
        broadcast: Broadcast,
        publisher: Publisher,
        max_streams: int,
        answer_timeout_s: float,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._broadcast = broadcast
        self._publisher = publisher
        self._max_streams = max_streams
        self._answer_timeout_s = answer_timeout_s
        self._clock = clock
        self._metrics = metrics
        self._sessions: dict[str, Session] = {}
        self._push: weights_pb2.ControlMessage | None = None

    @property
    def engines(self) -> tuple[EngineStatus, ...]:
        """The connected engines, by name."""
        return tuple(session.status for _, session in sorted(self._sessions.items()))

    async def StreamWeights(  # noqa: N802 - the name is the protocol's
        self, request_iterator: AsyncIterator[weights_pb2.EngineMessage], context: Context
    ) -> AsyncIterator[weights_pb2.ControlMessage]:
        """An engine's stream, as the top of weights.proto has it."""
        await self._admit(context)
        session = await self._greet(request_iterator, context)
        with self._broadcast.listen() as wake, self._connected(session):
            reader = asyncio.create_task(self._read(request_iterator, session, wake))
            try:
                while not (self._broadcast.closed or reader.done()):
                    wake.clear()
                    latest = self._broadcast.latest
                    if latest is not None and session.wants(latest, self._clock.now_s()):
                        yield self._shared_push(session, latest)
                    else:
                        await self._sleep(wake, session)
            finally:
                reader.cancel()

    async def GetWeights(  # noqa: N802 - the name is the protocol's
        self, request: weights_pb2.GetWeightsRequest, context: Context
    ) -> weights_pb2.Snapshot:
        """The newest snapshot."""
        latest = self._broadcast.latest
        if latest is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "nothing is published yet")
        return snapshot_to_wire(latest)
