"""Headers in front of a real vLLM with two API-server processes."""

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from loopback_control_plane import ControlPlane, class_policy, eventually, push, snapshot
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.stack.engine import MODEL_NAME, EngineSize, VllmEngine
from benchmarks.stack.process import free_port
from protos.trimtab.v1 import weights_pb2 as pb

pytestmark = pytest.mark.system

SIZE = EngineSize(hidden=128, layers=2, heads=2, kv_heads=1)
# Little more memory than the longest request needs, so that a dozen long ones run out of it, and
# a breaker that opens at the first shortage.
FEW_BLOCKS = ["--num-gpu-blocks-override", "40"]
QUICK_BREAKER = {
    "TRIMTAB_HELD_BACK": "refuse",
    "TRIMTAB_BREAKER__MAX_INCIDENTS_PER_S": "0",
    "TRIMTAB_BREAKER__SLOW_STEP_RATIO": "1",
    "TRIMTAB_BREAKER__SLOW_STEP_FLOOR_S": "0.0001",
    "TRIMTAB_BREAKER__OPEN_AFTER_S": "0",
    "TRIMTAB_BREAKER__COOL_DOWN_S": "5",
    "TRIMTAB_BREAKER__QUIET_S": "1",
}
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

    def publish(
        self, *classes: str | pb.ClassPolicy, rules: list[pb.ClassRule] | None = None
    ) -> None:
        version = next(self._versions)
        policies = [class_policy(one) if isinstance(one, str) else one for one in classes]
        names = {policy.task_class for policy in policies}
        self._plane.say.put(
            push(snapshot(version, classes=policies, rules=rules or []), nonce=str(version))
        )
        eventually(lambda: any(m.ack.version == version for m in self._plane.of_kind("ack")))
        eventually(lambda: names <= self.arrived().keys())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    with pytest.MonkeyPatch.context() as environment:
        for name, value in QUICK_BREAKER.items():
            environment.setenv(name, value)
        engine = VllmEngine(
            tmp_path_factory.mktemp("trimtab"),
            control_plane=f"127.0.0.1:{port}",
            size=SIZE,
            api_servers=2,
            options=["--middleware", "dataplane.middleware.ClassHeaders", *FEW_BLOCKS],
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
    server.publish("nobody")
    body = {**MESSAGES, "vllm_xargs": {"task_class": "nobody"}}
    answer = server.post("/v1/chat/completions", body, x_task_class="not a name")
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "header X-Task-Class must be 1 to 64 of A-Z a-z 0-9 _ . -",
        "type": "BadRequestError",
        "param": "X-Task-Class",
        "code": 400,
    }
    assert server.arrived()["nobody"] == 0


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"vllm_xargs": 7}', b"\xff"])
def test_vllm_answers_a_body_that_it_cannot_use_as_ever(server: Server, content: bytes) -> None:
    url, kind = f"{server.url}/v1/completions", {"content-type": "application/json"}
    plain = httpx.post(url, content=content, headers=kind)
    headed = httpx.post(url, content=content, headers={**kind, "X-Task-Class": "vip"})
    assert plain.is_client_error
    assert (headed.status_code, headed.text) == (plain.status_code, plain.text)


def test_a_breaker_that_opens_turns_the_worst_tier_away_at_the_door_until_it_recovers(
    server: Server,
) -> None:
    server.publish(class_policy("gold", tier=pb.TIER_P0), class_policy("bulk", tier=pb.TIER_P2))
    # The engine learns what a step for one request takes; those for a dozen are slower.
    server.post("/v1/completions", {**COMPLETION, "max_tokens": 64})
    long = [{**COMPLETION, "prompt": letter, "max_tokens": 1500} for letter in "abcdefghijkl"]
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(server.post, "/v1/completions", body) for body in long]
        eventually(lambda: "trimtab_breaker_state 2.0" in server.metrics(), timeout_s=60)
        refusal = ask(server, "bulk")
        assert ask(server, "gold").status_code == 200
        assert all(future.result().status_code == 200 for future in asked)
    assert refusal.status_code == refusal.json()["error"]["code"] == 503
    assert int(refusal.headers["Retry-After"]) >= 1
    eventually(lambda: ask(server, "bulk").status_code == 200, timeout_s=60)


def ask(server: Server, task_class: str) -> httpx.Response:
    return server.post("/v1/completions", COMPLETION, x_task_class=task_class)
