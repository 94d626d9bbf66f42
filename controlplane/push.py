"""WeightsService: snapshots out to engines and watchers, answers and reports in."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import Any

import grpc
import structlog

from controlplane.broadcast import Broadcast
from controlplane.clock import Clock
from controlplane.errors import StoreError
from controlplane.metrics import Metrics
from controlplane.publisher import Publisher
from controlplane.session import Answer, Session
from controlplane.snapshot import Snapshot
from controlplane.status import EngineStatus
from controlplane.wire import decision_to_wire, report_from_wire, snapshot_to_wire
from protos.trimtab.v1 import weights_pb2
from protos.trimtab.v1.weights_pb2_grpc import WeightsServiceServicer

log = structlog.get_logger(__name__)

MAX_NAME_CHARS = 128
"""Of an engine's id and of its version."""
MAX_REASON_CHARS = 1000
_SHARED_PUSHES = 2
"""The newest snapshot's and its variant for canaries."""
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
        self._pushes: dict[str, weights_pb2.ControlMessage] = {}
        self._streams = 0
        self._numbers = count(1)

    @property
    def engines(self) -> tuple[EngineStatus, ...]:
        """The connected engines, by name."""
        return tuple(session.status for _, session in sorted(self._sessions.items()))

    async def StreamWeights(  # noqa: N802 - the name is the protocol's
        self, request_iterator: AsyncIterator[weights_pb2.EngineMessage], context: Context
    ) -> AsyncIterator[weights_pb2.ControlMessage]:
        """An engine's stream, as the top of weights.proto has it."""
        async with self._admitted(context):
            session = await self._greet(request_iterator, context)
            with self._broadcast.listen() as wake, self._connected(session):
                reader = asyncio.create_task(self._read(request_iterator, session, wake))
                try:
                    while not (self._broadcast.closed or reader.done()):
                        wake.clear()
                        latest = self._broadcast.latest_for(session.engine_id)
                        if latest is not None and session.wants(latest, self._clock.now_s()):
                            yield self._shared_push(session, latest)
                        else:
                            await self._sleep(wake, session)
                finally:
                    reader.cancel()
                    await asyncio.gather(reader, return_exceptions=True)

    async def GetWeights(  # noqa: N802 - the name is the protocol's
        self,
        request: weights_pb2.GetWeightsRequest,  # noqa: ARG002 - it has no fields
        context: Context,
    ) -> weights_pb2.Snapshot:
        """The newest snapshot."""
        latest = self._broadcast.latest
        if latest is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "nothing is published yet")
        return snapshot_to_wire(latest)

    async def WatchWeights(  # noqa: N802 - the name is the protocol's
        self,
        request: weights_pb2.WatchWeightsRequest,  # noqa: ARG002 - it has no fields
        context: Context,
    ) -> AsyncIterator[weights_pb2.Snapshot]:
        """The newest snapshot, then each newer one."""
        sent: Snapshot | None = None
        async with self._admitted(context):
            with self._broadcast.listen() as wake:
                while not self._broadcast.closed:
                    wake.clear()
                    latest = self._broadcast.latest
                    if latest is not None and latest is not sent:
                        sent = latest
                        yield snapshot_to_wire(latest)
                    else:
                        await wake.wait()

    async def ExplainDecision(  # noqa: N802 - the name is the protocol's
        self, request: weights_pb2.ExplainDecisionRequest, context: Context
    ) -> weights_pb2.Decision:
        """How a version came about."""
        try:
            decision = await self._publisher.decision(request.version)
        except StoreError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"the store can't be read: {error}")
        if decision is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"version {request.version} was never published, or is past retention",
            )
        return decision_to_wire(decision)

    @asynccontextmanager
    async def _admitted(self, context: Context) -> AsyncIterator[None]:
        """One stream more, if that is within the limit; it counts before it says Hello."""
        if self._streams >= self._max_streams:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"limits.max_streams ({self._max_streams}) streams are open",
            )
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    async def _greet(
        self, requests: AsyncIterator[weights_pb2.EngineMessage], context: Context
    ) -> Session:
        """The session of the engine that the first message names."""
        try:
            first = await asyncio.wait_for(anext(requests), self._answer_timeout_s)
        except (TimeoutError, StopAsyncIteration):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the stream began without a Hello"
            )
        if first.WhichOneof("body") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message is no Hello")
        hello = first.hello
        for name, text in (
            ("engine_id", hello.engine_id),
            ("engine_version", hello.engine_version or "unknown"),
        ):
            if not (text.isprintable() and len(text) <= MAX_NAME_CHARS and text):
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"{name} must be 1 to {MAX_NAME_CHARS} printable characters",
                )
        log.info("engine connected", engine=hello.engine_id, applied=hello.applied_version)
        return Session(
            hello.engine_id, hello.engine_version, self._answer_timeout_s, next(self._numbers)
        )

    @contextmanager
    def _connected(self, session: Session) -> Iterator[None]:
        """Show the engine while its stream lives; its newest stream counts."""
        self._sessions[session.engine_id] = session
        self._metrics.engines.set(len(self._sessions))
        try:
            yield
        finally:
            if self._sessions.get(session.engine_id) is session:
                del self._sessions[session.engine_id]
            self._metrics.engines.set(len(self._sessions))
            log.info("engine left", engine=session.engine_id)

    def _shared_push(self, session: Session, snapshot: Snapshot) -> weights_pb2.ControlMessage:
        """The push of a snapshot; nonces agree, so all streams send the same message."""
        nonce = session.pushed(snapshot, self._clock.now_s())
        shared = self._pushes.get(nonce)
        if shared is None:
            push = weights_pb2.Push(nonce=nonce, snapshot=snapshot_to_wire(snapshot))
            shared = weights_pb2.ControlMessage(push=push)
            self._pushes = dict([*self._pushes.items(), (nonce, shared)][-_SHARED_PUSHES:])
        return shared

    async def _sleep(self, wake: asyncio.Event, session: Session) -> None:
        """Until something happens, or the engine has had its time to answer."""
        patience_s = session.patience_s(self._clock.now_s())
        try:
            await asyncio.wait_for(wake.wait(), patience_s or None)
        except TimeoutError:
            log.warning("an engine did not answer", engine=session.engine_id)

    async def _read(
        self,
        requests: AsyncIterator[weights_pb2.EngineMessage],
        session: Session,
        wake: asyncio.Event,
    ) -> None:
        """Take what the engine says until it says no more."""
        try:
            async for message in requests:
                self._take(message, session)
                wake.set()
        finally:
            wake.set()

    def _take(self, message: weights_pb2.EngineMessage, session: Session) -> None:
        match message.WhichOneof("body"):
            case "ack":
                self._metrics.answers.labels(session.acked(message.ack.nonce).value).inc()
            case "nack":
                self._nacked(message.nack, session)
            case "report":
                session.reported(report_from_wire(message.report))
            case _:
                pass  # a field that this version does not know, or a second Hello

    def _nacked(self, nack: weights_pb2.Nack, session: Session) -> None:
        answer = session.nacked(nack.nonce, nack.reason[:MAX_REASON_CHARS])
        self._metrics.answers.labels(answer.value).inc()
        if answer is Answer.STALE:
            return  # there may be any number of them; an answer to a push comes once
        log.warning(
            "an engine refused a snapshot",
            engine=session.engine_id,
            version=nack.version,
            reason=nack.reason[:MAX_REASON_CHARS],
        )
