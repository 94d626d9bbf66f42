"""The background thread that keeps the weights stream up."""

import logging
import random
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

import grpc

from dataplane.clock import Clock
from dataplane.errors import SnapshotError
from dataplane.faults import FaultBarrier
from dataplane.state import EngineState
from dataplane.subscriber.in_force import TableInForce
from dataplane.subscriber.messages import (
    Identity,
    Judged,
    ack,
    counts_of,
    decode_snapshot,
    hello,
    nack,
    report,
)
from protos.trimtab.v1 import weights_pb2 as pb
from protos.trimtab.v1.weights_pb2_grpc import WeightsServiceStub

logger = logging.getLogger("vllm.trimtab")

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 5.0
KEEPALIVE_S = 10.0
"""A peer that answers nothing is given up after this, twice over; the TTL covers the rest."""

# Of its own: vLLM seeds the shared generator alike in every engine.
_JITTER = random.SystemRandom()

Outbox = SimpleQueue[pb.EngineMessage | None]


class Subscriber:
    """Follows a control plane, whatever becomes of it. Nothing here blocks the engine.

    Args:
        control_plane: ``host:port``.
        state: gives the engine's latest state, for the reports.
        barrier: ends faults of the plugin.
        keepalive_s: between two pings, and how long an answer may take.
    """

    def __init__(
        self,
        *,
        control_plane: str,
        identity: Identity,
        in_force: TableInForce,
        state: Callable[[], EngineState],
        barrier: FaultBarrier,
        clock: Clock,
        report_interval_s: float,
        keepalive_s: float = KEEPALIVE_S,
    ) -> None:
        self._control_plane = control_plane
        self._identity = identity
        self._in_force = in_force
        self._state = state
        self._barrier = barrier
        self._clock = clock
        self._report_interval_s = report_interval_s
        self._keepalive_s = keepalive_s
        self._stopped = threading.Event()
        self._call: grpc.Call | None = None
        self._thread = threading.Thread(target=self._run, name="trimtab-stream", daemon=True)

    def start(self) -> None:
        """Start following."""
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Stop following; the snapshot in force stays until its TTL."""
        self._stopped.set()
        # The channel is closed by the thread that opened it: here, only the call is ended.
        call = self._call
        if call is not None:
            call.cancel()
        self._thread.join(timeout_s)

    @property
    def is_running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread.is_alive()

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            applied_before = self._in_force.applied
            with self._barrier:
                self._follow()
            failures = 0 if self._in_force.applied > applied_before else failures + 1
            self._stopped.wait(backoff_s(failures))

    def _follow(self) -> None:
        """Open a stream and follow it until it breaks."""
        outbox: Outbox = SimpleQueue()
        # A new channel each time: no state of the broken one lives on, names resolve anew.
        channel = grpc.insecure_channel(self._control_plane, self._options())
        try:
            call = self._call = WeightsServiceStub(channel).StreamWeights(self._speak(outbox))
            if self._stopped.is_set():
                return  # stop() came before there was a call to end
            for message in call:
                if message.HasField("push"):
                    outbox.put(self._answer(message.push))
            logger.info("Trimtab: the control plane closed the stream")
        except grpc.RpcError as error:
            logger.info("Trimtab: no stream to %s: %s", self._control_plane, _in_short(error))
        finally:
            self._call = None
            outbox.put(None)
            channel.close()

    def _speak(self, outbox: Outbox) -> Iterator[pb.EngineMessage]:
        """What the engine says, on gRPC's own thread: hello, answers, and reports in between."""
        yield hello(self._identity, self._in_force.at(self._clock.monotonic_s()))
        due_s = self._clock.monotonic_s()
        told: frozenset[Judged] = frozenset()
        while True:
            try:
                message = outbox.get(timeout=max(0.0, due_s - self._clock.monotonic_s()))
            except Empty:
                now_s = self._clock.monotonic_s()
                due_s = now_s + self._report_interval_s
                state = self._state()
                message = report(state, self._in_force.at(now_s), now_s, told)
                told = counts_of(state)
            if message is None:
                return
            yield message

    def _answer(self, push: pb.Push) -> pb.EngineMessage:
        try:
            table = decode_snapshot(push.snapshot, self._clock.monotonic_s())
            self._in_force.offer(table)
        except SnapshotError as refusal:
            self._in_force.refused += 1
            logger.warning("Trimtab: snapshot refused: %s", refusal)
            return nack(push, str(refusal))
        logger.debug("Trimtab: snapshot %d applied, mode %s", table.version, table.mode)
        return ack(push)

    def _options(self) -> list[tuple[str, int]]:
        keepalive_ms = round(self._keepalive_s * 1000)
        return [
            ("grpc.keepalive_time_ms", keepalive_ms),
            ("grpc.keepalive_timeout_ms", keepalive_ms),
            # gRPC gives a ping a minute whatever the line above says; this shortens it.
            ("grpc.http2.ping_timeout_ms", keepalive_ms),
            ("grpc.http2.max_pings_without_data", 0),
            # Despite its name, also how long a connection may take to come about.
            ("grpc.min_reconnect_backoff_ms", keepalive_ms),
            # Backing off is done here; a shared subchannel would add its own on top.
            ("grpc.use_local_subchannel_pool", 1),
        ]


def backoff_s(failures: int) -> float:
    """How long to wait after this many failures in a row.

    Doubles up to a bound; jittered over its upper half, so that a fleet does not come back
    at one moment.
    """
    longest_s: float = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(failures, 10))
    return _JITTER.uniform(longest_s / 2, longest_s)


def _in_short(error: Exception) -> str:
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error)
