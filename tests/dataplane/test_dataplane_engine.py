"""The plugin inside a real vLLM server, steered by a control plane in this process."""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from engine_server import Server
from loopback_control_plane import ControlPlane, class_policy, eventually

from benchmarks.stack.engine import MODEL_NAME, EngineSize, VllmEngine
from benchmarks.stack.process import free_port
from protos.trimtab.v1 import weights_pb2 as pb

pytestmark = pytest.mark.system

# Two slots: whatever comes third has to queue.
SIZE = EngineSize(hidden=128, layers=2, heads=2, kv_heads=1, max_num_seqs=2)
PROMPTS = ["a", "hello world", "the quick brown fox " * 20, "x" * 700]


@pytest.fixture(scope="module")
def stock_tokens(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """What the same model says under stock vLLM."""
    engine = VllmEngine(tmp_path_factory.mktemp("stock"), scheduler="stock-fcfs", size=SIZE)
    with engine.child:
        engine.wait_ready()
        server = Server(engine)
        with server.http:
            return {prompt: server.tokens(prompt) for prompt in PROMPTS}


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory,
    stock_tokens: dict[str, list[int]],  # noqa: ARG001 - one engine at a time
) -> Iterator[Server]:
    port = free_port()
    engine = VllmEngine(
        tmp_path_factory.mktemp("trimtab"), control_plane=f"127.0.0.1:{port}", size=SIZE
    )
    with engine.child:
        engine.wait_ready()
        server = Server(engine, port)
        with server.http:
            yield server


@pytest.fixture
def plane(server: Server) -> Iterator[ControlPlane]:
    plane = ControlPlane(server.control_plane_port)
    eventually(lambda: plane.of_kind("hello"))
    yield plane
    plane.kill()


def weights(**by_class: float) -> list[pb.ClassPolicy]:
    return [class_policy(name, weight=weight) for name, weight in by_class.items()]


def test_greedy_output_is_that_of_stock_vllm(
    server: Server, plane: ControlPlane, stock_tokens: dict[str, list[int]]
) -> None:
    for discipline in (pb.DISCIPLINE_APQ, pb.DISCIPLINE_FCFS):
        server.publish(plane, discipline=discipline, classes=weights(vip=9.0, batch=0.1))
        classes = itertools.cycle(["vip", "batch"])
        for prompt, expected in stock_tokens.items():
            tokens = server.tokens(prompt, task_class=next(classes))
            assert tokens == expected


def test_a_class_travels_from_the_body_to_the_metrics(server: Server, plane: ControlPlane) -> None:
    server.publish(
        plane,
        classes=weights(vip=3.0, long=1.0),
        rules=[pb.ClassRule(task_class="long", min_prompt_tokens=500)],
    )
    eventually(lambda: server.value("trimtab_class_weight", task_class="vip") == 3.0)
    classes = ("vip", "long", "default", "other")
    before = {name: server.arrived(name) for name in classes}
    for prompt, claim in (("a", "vip"), ("x" * 600, None), ("a", None), ("a", "no name"), ("a", 7)):
        assert server.complete(prompt, claim).status_code == 200
    grown = {"vip": 1, "long": 1, "default": 1, "other": 2}
    eventually(lambda: {name: server.arrived(name) - before[name] for name in classes} == grown)
    eventually(lambda: server.value("trimtab_ttft_seconds_count", task_class="vip"))
    eventually(lambda: server.value("trimtab_waiting_requests", task_class="vip") == 0)
    assert server.value("trimtab_running_requests", task_class="vip") == 0
    assert server.value("trimtab_plugin_faults_total") == 0


def test_a_chat_message_takes_its_class_along(server: Server, plane: ControlPlane) -> None:
    server.publish(plane, classes=weights(chat=1.0))
    before = server.arrived("chat")
    body = {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 4,
        "vllm_xargs": {"task_class": "chat"},
    }
    assert server.http.post("/v1/chat/completions", json=body).is_success
    eventually(lambda: server.arrived("chat") == before + 1)


def test_several_choices_count_each_and_all_come(server: Server, plane: ControlPlane) -> None:
    server.publish(plane, classes=weights(several=1.0))
    before = server.arrived("several")
    answer = server.complete("a", "several", n=3, temperature=1.0, seed=1).json()
    assert len(answer["choices"]) == 3
    eventually(lambda: server.arrived("several") == before + 3)


def test_a_client_that_leaves_its_stream_counts_as_aborted(
    server: Server, plane: ControlPlane
) -> None:
    server.publish(plane, classes=weights(leaver=1.0))
    before = server.finished("leaver", "aborted")
    body = {
        "model": MODEL_NAME,
        "prompt": "a",
        "max_tokens": 3000,
        "ignore_eos": True,
        "stream": True,
        "vllm_xargs": {"task_class": "leaver"},
    }
    with server.http.stream("POST", "/v1/completions", json=body) as stream:
        assert next(stream.iter_lines()).startswith("data: ")
    eventually(lambda: server.finished("leaver", "aborted") == before + 1)
    eventually(lambda: server.value("trimtab_running_requests", task_class="leaver") == 0)


def test_a_request_that_found_its_stop_text_is_no_abort(
    server: Server, plane: ControlPlane
) -> None:
    server.publish(plane, classes=weights(stopper=1.0))
    text = server.complete("hello world", max_tokens=8).json()["choices"][0]["text"]
    before = server.finished("stopper", "met") + server.finished("stopper", "late")
    answer = server.complete("hello world", "stopper", max_tokens=500, stop=[text[2:4]]).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    eventually(
        lambda: server.finished("stopper", "met") + server.finished("stopper", "late") > before
    )
    assert server.finished("stopper", "aborted") == 0


def queue_time(server: Server, task_class: str) -> tuple[float, float]:
    """How many of a class were dispatched so far, and the seconds they waited in all."""
    count, total_s = (
        server.value(f"trimtab_queue_time_seconds_{part}", task_class=task_class) or 0.0
        for part in ("count", "sum")
    )
    return count, total_s


@pytest.mark.parametrize(("flipped", "first"), [(False, "left"), (True, "right")])
def test_a_flip_of_weights_turns_the_order_of_what_is_queued(
    server: Server, plane: ControlPlane, *, flipped: bool, first: str
) -> None:
    # What holds the slots weighs as much: nobody is to get one by preemption.
    server.publish(plane, classes=weights(left=1000.0, right=0.001, holder=1000.0))
    before = {name: queue_time(server, name) for name in ("left", "right")}

    with ThreadPoolExecutor(16) as pool:
        with server.all_slots_taken(SIZE.max_num_seqs, "holder"):
            # Long enough to run that who arrived a moment earlier makes no difference.
            asked = [
                pool.submit(server.complete, "a", name, max_tokens=32)
                for name in ["right", "left"] * 8
            ]
            for name in ("left", "right"):
                eventually(partial(server.waits, name, 8))
            if flipped:
                server.publish(plane, classes=weights(left=0.001, right=1000.0, holder=1000.0))
        for future in asked:
            future.result().raise_for_status()
    # As the engine measured it: answers may overtake each other on their way to us.
    for name in ("left", "right"):
        eventually(lambda name=name: queue_time(server, name)[0] == before[name][0] + 8)
    waited_s = {name: queue_time(server, name)[1] - before[name][1] for name in before}
    assert min(waited_s, key=lambda name: waited_s[name]) == first


def test_a_killed_control_plane_harms_no_request_and_the_engine_turns_neutral_at_the_ttl(
    server: Server, plane: ControlPlane
) -> None:
    server.publish(plane, ttl_s=4.0, classes=[class_policy("chat", weight=5.0)])
    eventually(lambda: server.value("trimtab_class_weight", task_class="chat") == 5.0)
    plane.kill()
    statuses = []
    ages = []
    while server.value("trimtab_neutral") != 1:
        statuses.append(server.complete("a", "chat", max_tokens=4).status_code)
        ages.append(server.value("trimtab_snapshot_age_seconds"))
    assert set(statuses) == {200}
    assert ages == sorted(ages)
    assert server.value("trimtab_class_weight", task_class="chat") == 1.0
    again = ControlPlane(server.control_plane_port)
    server.publish(again, classes=[class_policy("chat", weight=6.0)])
    eventually(lambda: server.value("trimtab_neutral") == 0)
    again.kill()
