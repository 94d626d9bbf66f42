"""A control plane on loopback, under a test's control."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field

import grpc

from dataplane.clock import Clock
from protos.trimtab.v1 import weights_pb2 as pb


@dataclass
class HandClock(Clock):
    """Stands still until a test moves it; the wall clock runs beside the monotonic one."""

    now_s: float = 1000.0
    wall_offset_s: float = 1.7e9

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s + self.wall_offset_s


def class_policy(name: str = "chat", **fields: object) -> pb.ClassPolicy:
    policy = pb.ClassPolicy(
        task_class=name,
        weight=2.0,
        default_weight=1.0,
        slo=pb.Slo(ttft_s=1.0),
        value=1.0,
        late=pb.LATE_POLICY_SERVE,
    )
    policy.MergeFrom(pb.ClassPolicy(**fields))  # type: ignore[arg-type] # fields of a ClassPolicy
    return policy


def snapshot(version: int = 1, epoch: int = 1, **fields: object) -> pb.Snapshot:
    message = pb.Snapshot(
        version=version,
        epoch=epoch,
        ttl_s=60.0,
        mode=pb.MODE_RULE,
        discipline=pb.DISCIPLINE_APQ,
        classes=[] if "classes" in fields else [class_policy()],
    )
    message.MergeFrom(pb.Snapshot(**fields))  # type: ignore[arg-type] # fields of a Snapshot
    return message


def push(message: pb.Snapshot, nonce: str = "n1") -> pb.ControlMessage:
    return pb.ControlMessage(push=pb.Push(nonce=nonce, snapshot=message))


@dataclass
class ControlPlane:
    """Sends what a test puts into ``say`` and keeps what engines said in ``heard``."""

    port: int = 0
    say: "queue.Queue[pb.ControlMessage | bytes | None]" = field(default_factory=queue.Queue)
    heard: list[pb.EngineMessage] = field(default_factory=list)
    streams: int = 0

    def __post_init__(self) -> None:
        self._server = grpc.server(
            futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)]
        )
        handler = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=pb.EngineMessage.FromString,
            response_serializer=_as_bytes,
        )
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    "trimtab.v1.WeightsService", {"StreamWeights": handler}
                )
            ]
        )
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()

    def _stream(
        self, requests: Iterator[pb.EngineMessage], context: grpc.ServicerContext
    ) -> Iterator[pb.ControlMessage | bytes]:
        self.streams += 1
        threading.Thread(target=self._listen, args=(requests,), daemon=True).start()
        while context.is_active():
            try:
                message = self.say.get(timeout=0.05)
            except queue.Empty:
                continue
            if message is None:
                return
            yield message

    def _listen(self, requests: Iterator[pb.EngineMessage]) -> None:
        try:
            for message in requests:
                self.heard.append(message)
        except grpc.RpcError:
            return  # the engine left

    def of_kind(self, kind: str) -> list[pb.EngineMessage]:
        return [message for message in list(self.heard) if message.WhichOneof("body") == kind]

    def kill(self) -> None:
        """Break every connection at once, as a killed process does."""
        self._server.stop(grace=None).wait()


def _as_bytes(message: pb.ControlMessage | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


def eventually(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come to pass"
        time.sleep(0.01)
