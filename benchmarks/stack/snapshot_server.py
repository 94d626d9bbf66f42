"""The other end of an engine's stream: hands it the snapshots that a measurement is about.

A control plane decides by itself what it publishes. A comparison of policies needs each of
them in force for as long as it is measured.
"""

import itertools
import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import replace
from types import TracebackType
from typing import Self

import grpc

from benchmarks.errors import PolicyNotApplied
from controlplane.snapshot import Snapshot
from controlplane.wire import snapshot_to_wire
from protos.trimtab.v1 import weights_pb2

_POLL_S = 0.1
_SERVICE = weights_pb2.DESCRIPTOR.services_by_name["WeightsService"].full_name


class SnapshotServer:
    """Serves one engine.

    Args:
        answer_timeout_s: how long the engine may take to connect and to answer.

    Attributes:
        address: ``host:port`` for the engine to follow.
    """

    def __init__(self, answer_timeout_s: float = 30.0) -> None:
        self._answer_timeout_s = answer_timeout_s
        self._changed = threading.Condition()
        self._newest: Snapshot | None = None
        self._versions = itertools.count(1)
        self._acked = 0
        self._refusal: str | None = None
        stream = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=weights_pb2.EngineMessage.FromString,
            response_serializer=weights_pb2.ControlMessage.SerializeToString,
        )
        self._server = grpc.server(
            futures.ThreadPoolExecutor(2),
            handlers=[grpc.method_handlers_generic_handler(_SERVICE, {"StreamWeights": stream})],
            options=[("grpc.so_reuseport", 0)],
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def publish(self, name: str, snapshot: Snapshot) -> None:
        """Put a snapshot in force; its version is set here.

        Raises:
            PolicyNotApplied: the engine refuses it, or does not answer.
        """
        with self._changed:
            newest = self._newest = replace(snapshot, version=next(self._versions))
            self._refusal = None
            self._changed.notify_all()
            answered = self._changed.wait_for(
                lambda: self._refusal is not None or self._acked >= newest.version,
                self._answer_timeout_s,
            )
            refusal = self._refusal
        if not answered or refusal is not None:
            raise PolicyNotApplied(
                name, refusal or f"no answer within {self._answer_timeout_s:g} s"
            )

    def _stream(
        self,
        messages: Iterator[weights_pb2.EngineMessage],
        context: grpc.ServicerContext,
    ) -> Iterator[weights_pb2.ControlMessage]:
        threading.Thread(target=self._listen, args=(messages,), daemon=True).start()
        sent = 0
        while context.is_active():
            newest = self._newer_than(sent)
            if newest is None:
                continue
            sent = newest.version
            push = weights_pb2.Push(nonce=str(sent), snapshot=snapshot_to_wire(newest))
            yield weights_pb2.ControlMessage(push=push)

    def _newer_than(self, version: int) -> Snapshot | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_newer_than(version), _POLL_S)
            return self._newest if self._is_newer_than(version) else None

    def _is_newer_than(self, version: int) -> bool:
        return self._newest is not None and self._newest.version > version

    def _listen(self, messages: Iterator[weights_pb2.EngineMessage]) -> None:
        try:
            for message in messages:
                self._hear(message)
        except grpc.RpcError:
            return  # the engine left

    def _hear(self, message: weights_pb2.EngineMessage) -> None:
        with self._changed:
            match message.WhichOneof("body"):
                case "ack":
                    self._acked = max(self._acked, message.ack.version)
                case "nack":
                    self._refusal = message.nack.reason
                case _:
                    return
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.stop(grace=None).wait()
