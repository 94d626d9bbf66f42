"""Headers in front of a real vLLM with two API-server processes."""

import itertools
import json
from collections.abc import Iterator

import httpx
import pytest
from loopback_control_plane import ControlPlane, class_policy, eventually, push, snapshot
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.stack.engine import MODEL_NAME, EngineSize, VllmEngine
from benchmarks.stack.process import free_port
from protos.trimtab.v1 import weights_pb2 as pb

pytestmark = pytest.mark.system

SIZE = EngineSize(hidden=128, layers=2, heads=2, kv_heads=1)
COMPLETION = {"model": MODEL_NAME, "prompt": "a", "max_tokens": 4, "ignore_eos": True}
MESSAGES = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
BODIES: dict[str, dict[str, object]] = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": MESSAGES,
    "/v1/messages": MESSAGES,
    "/v1/responses": {"model": MODEL_NAME, "input": "hi", "max_output_tokens": 4},
}


class Server:
    """A running engine. Each request comes on a connection of its own, to any API server."""

    def __init__(self, url: str, plane: ControlPlane) -> None:
        self.url = url
        self._plane = plane
        self._versions = itertools.count(1)

    def post(self, path: str, body: dict[str, object], **headers: str) -> httpx.Response:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(self.url + path, json=body, headers=names, timeout=120.0)

    def metrics(self) -> str:
        return httpx.get(f"{self.url}/metrics", timeout=120.0).text

    def arrived(self) -> dict[str, float]:
        return {
            sample.labels["task_class"]: sample.value
            for family in text_string_to_metric_families(self.metrics())
            for sample in family.samples
            if sample.name == "trimtab_requests_arrived_total"
        }

    def publish(self, *classes: str, rules: list[pb.ClassRule] | None = None) -> None:
        version = next(self._versions)
        policies = [class_policy(name) for name in classes]
        self._plane.say.put(
            push(snapshot(version, classes=policies, rules=rules or []), nonce=str(version))
        )
        eventually(lambda: any(m.ack.version == version for m in self._plane.of_kind("ack")))
        eventually(lambda: set(classes) <= self.arrived().keys())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    engine = VllmEngine(
        tmp_path_factory.mktemp("trimtab"),
        control_plane=f"127.0.0.1:{port}",
        size=SIZE,
        api_servers=2,
        options=["--middleware", "dataplane.middleware.ClassHeaders"],
    )
    with engine.child:
        engine.wait_ready()
        plane = ControlPlane(port)
        eventually(lambda: plane.of_kind("hello"))
        yield Server(engine.url, plane)
        plane.kill()


@pytest.mark.parametrize("path", BODIES)
def test_a_header_names_the_class_at_each_endpoint(server: Server, path: str) -> None:
    server.publish("vip", "free")
    before = server.arrived()
    body = {**BODIES[path], "vllm_xargs": {"task_class": "free"}}
    for _ in range(3):
        answer = server.post(path, body, x_task_class="vip")
        assert answer.status_code == 200, answer.text
    eventually(lambda: server.arrived()["vip"] == before["vip"] + 3)
    assert server.arrived()["free"] == before["free"]


def test_rules_see_the_tenant_of_the_header_and_the_priority(server: Server) -> None:
    rules = [
        pb.ClassRule(task_class="partners", tenant="acme"),
        pb.ClassRule(task_class="urgent", max_priority=-1),
    ]
    server.publish("partners", "urgent", rules=rules)
    before = server.arrived()
    assert server.post("/v1/completions", COMPLETION, x_tenant="acme").is_success
    assert server.post("/v1/completions", {**COMPLETION, "priority": -5}).is_success
    for name in ("partners", "urgent"):
        eventually(lambda name=name: server.arrived()[name] == before[name] + 1)
    assert not any("acme" in name for name in server.arrived())


def test_a_stream_is_streamed_and_the_built_in_rules_see_that_it_is_one(server: Server) -> None:
    server.publish("streaming", "batch")
    before = server.arrived()
    body = {**COMPLETION, "stream": True, "max_tokens": 2000}
    headers = {"X-Tenant": "acme"}
    url = f"{server.url}/v1/completions"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=120.0) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in answer.iter_lines() if line)
        first = json.loads(next(lines).removeprefix("data: "))
        assert first["choices"][0]["finish_reason"] is None
        # The request still runs: so its first event did not wait for the others.
        eventually(lambda: 'running_requests{task_class="streaming"} 1.0' in server.metrics())
    assert server.post("/v1/completions", COMPLETION).is_success
    grown = {"streaming": 1, "batch": 1}
    eventually(lambda: {n: server.arrived()[n] - before[n] for n in grown} == grown)


def test_a_malformed_header_gets_400_with_the_rule_and_reaches_no_engine(server: Server) -> None:
    before = server.arrived()
    answer = server.post("/v1/chat/completions", MESSAGES, x_task_class="not a name")
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "header X-Task-Class must be 1 to 64 of A-Z a-z 0-9 _ . -",
        "type": "BadRequestError",
        "param": "X-Task-Class",
        "code": 400,
    }
    assert server.arrived() == before


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"vllm_xargs": 7}', b"\xff"])
def test_vllm_answers_a_body_that_it_cannot_use_as_ever(server: Server, content: bytes) -> None:
    url, kind = f"{server.url}/v1/completions", {"content-type": "application/json"}
    plain = httpx.post(url, content=content, headers=kind)
    headed = httpx.post(url, content=content, headers={**kind, "X-Task-Class": "vip"})
    assert plain.is_client_error
    assert (headed.status_code, headed.text) == (plain.status_code, plain.text)
