"""An engine on a real stream: takes what it is sent, and reports what becomes of its requests."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from protos.trimtab.v1 import weights_pb2

if TYPE_CHECKING:  # it lives in the stubs only
    from protos.trimtab.v1.weights_pb2_grpc import WeightsServiceAsyncStub

REQUESTS = 20
"""Served between two reports."""


class StreamEngine:
    """Of its requests a part is late that depends on whose weights it runs.

    Attributes:
        versions: of all snapshots that it took, in order.
        snapshot: that it runs; None: none yet.
    """

    def __init__(
        self, stub: "WeightsServiceAsyncStub", engine_id: str, late_ratio: Mapping[str, float]
    ) -> None:
        self.engine_id = engine_id
        self.versions: list[int] = []
        self.models: list[str] = []
        self.snapshot: weights_pb2.Snapshot | None = None
        self._stub = stub
        self._late_ratio = late_ratio
        self._judged = self._violated = 0
        self._writing = asyncio.Lock()
        self.connect()

    @property
    def judged(self) -> int:
        return self._judged

    def connect(self) -> None:
        self._call = self._stub.StreamWeights()
        self._follower = asyncio.create_task(self._follow())

    async def serve(self) -> None:
        """Serve some requests and report."""
        if self.snapshot is None:
            return
        self._judged += REQUESTS
        self._violated += round(REQUESTS * self._late_ratio.get(self.snapshot.model_version, 0.1))
        counts = weights_pb2.ClassCounts(
            task_class="vip", judged=self._judged, violated=self._violated
        )
        await self._send(
            report=weights_pb2.Report(
                applied_version=self.snapshot.version,
                applied_epoch=self.snapshot.epoch,
                counts=[counts],
            )
        )

    async def leave(self) -> None:
        self._call.cancel()
        self._follower.cancel()
        await asyncio.gather(self._follower, return_exceptions=True)

    async def restart(self) -> None:
        """As a new process: its counters begin anew."""
        await self.leave()
        self._judged = self._violated = 0
        self.connect()

    async def _follow(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self._send(
                hello=weights_pb2.Hello(engine_id=self.engine_id, engine_version="0.32")
            )
            async for message in self._call:
                push = message.push
                self.snapshot = push.snapshot
                self.versions.append(push.snapshot.version)
                self.models.append(push.snapshot.model_version)
                ack = weights_pb2.Ack(nonce=push.nonce, version=push.snapshot.version)
                await self._send(ack=ack)

    async def _send(self, **body: object) -> None:
        async with self._writing:
            await self._call.write(weights_pb2.EngineMessage(**body))
