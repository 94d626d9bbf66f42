"""The subscriber against real gRPC servers on loopback, well behaved and otherwise."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from loopback_control_plane import ControlPlane, HandClock, class_policy, eventually, push, snapshot

from dataplane.clock import Clock
from dataplane.faults import FaultBarrier
from dataplane.state import ClassState, EngineState
from dataplane.subscriber import Identity, Subscriber, TableInForce
from dataplane.subscriber.stream import LONGEST_BACKOFF_S, backoff_s


class Engine:
    """What an engine holds of the stream."""

    def __init__(self, port: int, clock: Clock | None = None, keepalive_s: float = 10.0) -> None:
        self.in_force = TableInForce()
        self.barrier = FaultBarrier()
        self.state = EngineState(classes=(ClassState("chat", 4, 2, 0, None),))
        self.subscriber = Subscriber(
            control_plane=f"127.0.0.1:{port}",
            identity=Identity("engine-1", "0.1", "0.32"),
            in_force=self.in_force,
            state=lambda: self.state,
            barrier=self.barrier,
            clock=clock or Clock(),
            report_interval_s=0.05,
            keepalive_s=keepalive_s,
        )

    def runs(self, version: int, epoch: int = 1) -> bool:
        table = self.in_force.at(0.0)
        return (table.version, table.epoch) == (version, epoch)


@contextmanager
def following(port: int, clock: Clock | None = None, keepalive_s: float = 10.0) -> Iterator[Engine]:
    engine = Engine(port, clock, keepalive_s)
    engine.subscriber.start()
    try:
        yield engine
    finally:
        engine.subscriber.stop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def test_hello_names_the_engine_and_what_it_runs(control_plane: ControlPlane) -> None:
    with following(control_plane.port):
        eventually(lambda: control_plane.of_kind("hello"))
    hello = control_plane.heard[0].hello
    assert (hello.engine_id, hello.plugin_version, hello.engine_version) == (
        *("engine-1", "0.1", "0.32"),
    )
    assert (hello.applied_version, hello.applied_epoch) == (0, 0)


def test_a_snapshot_is_applied_and_acknowledged_by_its_nonce(control_plane: ControlPlane) -> None:
    control_plane.say.put(push(snapshot(version=4, epoch=2), nonce="abc"))
    with following(control_plane.port) as engine:
        eventually(lambda: control_plane.of_kind("ack"))
        assert engine.runs(4, epoch=2)
    ack = control_plane.of_kind("ack")[0].ack
    assert (ack.nonce, ack.version, ack.epoch) == ("abc", 4, 2)


def test_a_broken_snapshot_is_refused_with_its_reason_and_the_next_is_applied(
    control_plane: ControlPlane,
) -> None:
    control_plane.say.put(push(snapshot(1, classes=[class_policy(weight=-1.0)]), nonce="bad"))
    control_plane.say.put(push(snapshot(2), nonce="good"))
    with following(control_plane.port) as engine:
        eventually(lambda: control_plane.of_kind("ack"))
        assert engine.runs(2)
        assert (engine.in_force.applied, engine.in_force.refused) == (1, 1)
    nack = control_plane.of_kind("nack")[0].nack
    assert (nack.nonce, nack.version) == ("bad", 1)
    assert "weight must be positive" in nack.reason


def test_a_replaced_control_plane_is_fenced_off(control_plane: ControlPlane) -> None:
    control_plane.say.put(push(snapshot(1, epoch=2)))
    control_plane.say.put(push(snapshot(9, epoch=1)))
    with following(control_plane.port) as engine:
        eventually(lambda: control_plane.of_kind("nack"))
        assert engine.runs(1, epoch=2)
    assert "epoch 1 is over" in control_plane.of_kind("nack")[0].nack.reason


def test_the_same_snapshot_with_a_new_nonce_is_acknowledged_again(
    control_plane: ControlPlane,
) -> None:
    for nonce in ("one", "two"):
        control_plane.say.put(push(snapshot(1), nonce))
    with following(control_plane.port) as engine:
        eventually(lambda: len(control_plane.of_kind("ack")) == 2)
        assert engine.in_force.applied == 1
    assert [message.ack.nonce for message in control_plane.of_kind("ack")] == ["one", "two"]


def test_reports_carry_the_state_of_the_moment(control_plane: ControlPlane) -> None:
    with following(control_plane.port) as engine:
        eventually(lambda: control_plane.of_kind("report"))
        engine.state = EngineState(classes=(ClassState("chat", 99, 2, 0, None),))
        eventually(lambda: control_plane.of_kind("report")[-1].report.queues[0].waiting == 99)
    assert control_plane.of_kind("report")[0].report.queues[0].waiting == 4


def test_counts_are_told_once_per_stream_and_again_when_they_grow(
    control_plane: ControlPlane,
) -> None:
    def told() -> list[int]:
        reports = (message.report for message in control_plane.of_kind("report"))
        return [one.judged for report in reports for one in report.counts]

    with following(control_plane.port) as engine:
        engine.state = EngineState(classes=(ClassState("chat", 0, 0, 0, None, 5, 1),))
        eventually(lambda: told() == [5])
        seen = len(control_plane.of_kind("report"))
        eventually(lambda: len(control_plane.of_kind("report")) > seen + 1)
        engine.state = EngineState(classes=(ClassState("chat", 0, 0, 0, None, 6, 1),))
        eventually(lambda: told() == [5, 6])


def test_a_control_plane_that_comes_up_after_the_engine_is_found() -> None:
    port = free_port()
    with following(port) as engine:
        late = ControlPlane(port)
        late.say.put(push(snapshot(1)))
        eventually(lambda: engine.runs(1))
        late.kill()


def test_a_killed_control_plane_leaves_the_snapshot_and_is_followed_again() -> None:
    first = ControlPlane()
    first.say.put(push(snapshot(1)))
    with following(first.port) as engine:
        eventually(lambda: engine.runs(1))
        first.kill()
        assert engine.runs(1)
        second = ControlPlane(first.port)
        eventually(lambda: second.of_kind("hello"))
        assert second.heard[0].hello.applied_version == 1
        second.say.put(push(snapshot(2, epoch=2)))
        eventually(lambda: engine.runs(2, epoch=2))
        second.kill()
    assert engine.barrier.faults == 0


def test_a_dead_control_plane_turns_the_engine_neutral_at_the_ttl(clock: HandClock) -> None:
    plane = ControlPlane()
    plane.say.put(push(snapshot(1, ttl_s=-50.0)))  # refused: only the next one counts
    plane.say.put(push(snapshot(2)))
    with following(plane.port, clock) as engine:
        eventually(lambda: engine.in_force.applied)
        plane.kill()
        assert not engine.in_force.at(clock.now_s + 60.0).neutral
        assert engine.in_force.at(clock.now_s + 60.1).neutral


def test_a_stream_closed_in_good_order_is_opened_again(control_plane: ControlPlane) -> None:
    control_plane.say.put(None)
    control_plane.say.put(push(snapshot(1)))
    with following(control_plane.port) as engine:
        eventually(lambda: engine.runs(1))
    assert control_plane.streams == 2


def test_garbage_and_unknown_messages_do_no_harm(control_plane: ControlPlane) -> None:
    unknown_field = b"\xfa\x3f\x03abc"
    for garbage in (b"", unknown_field, b"\xff\xff\xff"):
        control_plane.say.put(garbage)
    with following(control_plane.port) as engine:
        eventually(lambda: control_plane.streams > 1)
        eventually(lambda: _run_next(control_plane, engine))
        assert engine.barrier.faults == 0


def test_a_peer_that_speaks_no_grpc_does_no_harm() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=_talk_nonsense, args=(server,), daemon=True).start()
        with following(port) as engine:
            eventually(_answered.is_set)
    assert engine.in_force.at(0.0).version == 0


_answered = threading.Event()


def _talk_nonsense(server: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nhello")
            connection.close()
            _answered.set()


class Pipe:
    """A TCP relay that can swallow everything, as a network does that drops packets."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.black_hole = threading.Event()
        self.connections = 0
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._target_port))
                self._ends += [near, far]
                self.connections += 1
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._relay, args=(source, sink), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        swallows = False
        with suppress(OSError):
            while received := source.recv(65536):
                swallows = swallows or self.black_hole.is_set()
                if not swallows:
                    sink.sendall(received)


def test_a_connection_that_swallows_everything_is_given_up(control_plane: ControlPlane) -> None:
    pipe = Pipe(control_plane.port)
    control_plane.say.put(push(snapshot(1)))
    with following(pipe.port, keepalive_s=0.5) as engine:
        eventually(lambda: engine.runs(1))
        pipe.black_hole.set()
        eventually(lambda: pipe.connections > 1)
        pipe.black_hole.clear()
        eventually(lambda: control_plane.streams > 1)
        eventually(lambda: _run_next(control_plane, engine))
    pipe.close()


def _run_next(plane: ControlPlane, engine: Engine) -> bool:
    """Keeps pushing: the stream that swallows may still take one away."""
    plane.say.put(push(snapshot(2)))
    return engine.runs(2)


def test_stopping_is_quick_with_and_without_a_control_plane(control_plane: ControlPlane) -> None:
    for port in (control_plane.port, free_port()):
        engine = Engine(port)
        engine.subscriber.start()
        engine.subscriber.stop(timeout_s=10.0)
        assert not engine.subscriber.is_running


@given(st.integers(0, 10_000))
def test_backoff_grows_jittered_and_bounded(failures: int) -> None:
    assert 0 < backoff_s(failures) <= LONGEST_BACKOFF_S


def test_backoff_doubles() -> None:
    bounds = [max(backoff_s(failures) for _ in range(200)) for failures in range(5)]
    assert all(later > 1.2 * earlier for earlier, later in pairwise(bounds))
