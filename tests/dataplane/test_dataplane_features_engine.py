"""Whatever vLLM can do it does under the plugin as well, and says the same.

A stock engine answers a set of questions that between them use all of it; then the plugin's
engine answers them, many at once, under every discipline. So they queue, skip each other,
share steps and prefixes, and must not change each other's words.

Questions to LoRA adapters are asked apart from the others: in the CPU build of vLLM itself, a
request without an adapter that shares a step with one that has one is answered with it.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_server import Server
from loopback_control_plane import ControlPlane, class_policy, eventually
from prometheus_client.mmap_dict import MmapedDict
from tiny_adapter import write_tiny_adapter

from benchmarks.stack.engine import MODEL_NAME, OLDEST_VLLM, EngineSize, Scheduler, VllmEngine
from benchmarks.stack.process import free_port
from dataplane.weights import Discipline
from protos.trimtab.v1 import weights_pb2 as pb

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

SIZE = EngineSize(hidden=128, layers=2, heads=2, kv_heads=1, max_num_seqs=4, weights_seed=7)
CLASSES = ("vip", "free", "bulk")
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BEGINNING = "It begins like all the others do. " * 10
YES_OR_NO = {
    "type": "object",
    "properties": {"ok": {"enum": ["yes", "no"]}},
    "required": ["ok"],
    "additionalProperties": False,
}
GREEDY: dict[str, Any] = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
FREE_TO_END = {"ignore_eos": False, "max_tokens": 200}
MESSAGES = [{"role": "user", "content": "What is a trim tab?"}]

# More than a step's 256 tokens are read in chunks; what follows a grammar waits in the queue
# until that is compiled; one adapter fits onto the engine at a time, the others are skipped.
TO_THE_MODEL: dict[str, tuple[str, dict[str, Any]]] = {
    "one character": (COMPLETIONS, {"prompt": "a"}),
    "long prompt": (COMPLETIONS, {"prompt": "the quick brown fox " * 50}),
    "longer prompt": (COMPLETIONS, {"prompt": "jumps over the lazy dog " * 60}),
    "shared beginning": (COMPLETIONS, {"prompt": BEGINNING + "This one ends."}),
    "shared beginning again": (COMPLETIONS, {"prompt": BEGINNING + "This one does not."}),
    "sampled choices": (COMPLETIONS, {"prompt": "a", "n": 3, "temperature": 1.0, "seed": 11}),
    "logprobs": (COMPLETIONS, {"prompt": "hello world", "logprobs": 3}),
    "stop text": (COMPLETIONS, {"prompt": "b", "max_tokens": 200, "stop": list("aeio")}),
    "choice": (
        COMPLETIONS,
        {"prompt": "c", "structured_outputs": {"choice": ["red", "blue"]}, **FREE_TO_END},
    ),
    "schema": (
        COMPLETIONS,
        {"prompt": "d", "structured_outputs": {"json": YES_OR_NO}, **FREE_TO_END},
    ),
    "chat": (CHAT, {"messages": MESSAGES}),
    "chat with logprobs": (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}),
    "chat choices": (CHAT, {"messages": MESSAGES, "n": 2, "temperature": 1.0, "seed": 3}),
    "chat with schema": (
        CHAT,
        {
            "messages": MESSAGES,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": YES_OR_NO},
            },
            **FREE_TO_END,
        },
    ),
}

TO_ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    f"{adapter} {prompt}": (COMPLETIONS, {"prompt": prompt, "model": adapter})
    for prompt in ("a", "hello world")
    for adapter in ("adapter-1", "adapter-2")
}
QUESTIONS = TO_THE_MODEL | TO_ADAPTERS

Answers = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Version:
    """A vLLM to test with. Attributes: overlay, None: the installed one."""

    name: str
    overlay: Path | None
    api_servers: int


VERSIONS = (Version("0.32.0", None, 2), Version("0.31.0", OLDEST_VLLM, 1))


def ask(server: Server, name: str, task_class: str | None = None) -> list[dict[str, Any]]:
    """The choices of an answer, on a connection of its own."""
    path, question = QUESTIONS[name]
    body = {"model": MODEL_NAME, "return_token_ids": True, **GREEDY, **question}
    if task_class is not None:
        body["vllm_xargs"] = {"task_class": task_class}
    answer = httpx.post(f"{server.http.base_url}{path}", json=body, timeout=300.0)
    assert answer.is_success, answer.text
    choices: list[dict[str, Any]] = sorted(answer.json()["choices"], key=lambda one: one["index"])
    return choices


def ask_all(server: Server) -> Answers:
    """The answers to questions that come at the same time."""
    answers = {}
    classes = itertools.cycle(CLASSES)
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        for together in (TO_THE_MODEL, TO_ADAPTERS):
            asked = {name: pool.submit(ask, server, name, next(classes)) for name in together}
            answers |= {name: answer.result() for name, answer in asked.items()}
    return answers


def text(choice: Mapping[str, Any]) -> str:
    said: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return said


def words(choices: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    return [(one["token_ids"], text(one), one["finish_reason"]) for one in choices]


def logprobs(choices: list[dict[str, Any]]) -> list[float]:
    """All of an answer's, of the tokens chosen and of the runners-up."""
    (choice,) = choices
    if "message" in choice:
        tokens = choice["logprobs"]["content"]
        return [top["logprob"] for token in tokens for top in token["top_logprobs"]]
    return [value for top in choice["logprobs"]["top_logprobs"] for value in sorted(top.values())]


@contextmanager
def running(
    folder: Path, version: Version, scheduler: Scheduler, api_servers: int = 1
) -> Iterator[Server]:
    adapters = {f"adapter-{seed}": folder / str(seed) for seed in (1, 2)}
    for seed, adapter in enumerate(adapters.values()):
        write_tiny_adapter(adapter, SIZE, seed)
    port = free_port()
    engine = VllmEngine(
        folder,
        scheduler=scheduler,
        control_plane=f"127.0.0.1:{port}",
        size=SIZE,
        api_servers=api_servers,
        overlay=version.overlay,
        options=[
            # Exact enough that what shares a step with a request does not change its words.
            *("--dtype", "float32"),
            *("--enable-lora", "--max-loras", "1", "--max-lora-rank", "8"),
            *("--lora-modules", *(f"{name}={path}" for name, path in adapters.items())),
            # A model that says anything would say blanks for ever.
            *("--structured-outputs-config.backend", "xgrammar"),
            *("--structured-outputs-config.disable_any_whitespace", "true"),
        ],
    )
    with engine.child:
        engine.wait_ready()
        server = Server(engine, port)
        with server.http:
            yield server


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda version: version.name)
def version(request: pytest.FixtureRequest) -> Iterator[Version]:
    with pytest.MonkeyPatch.context() as environment:
        # Or the first request for logprobs waits for a C++ compiler.
        environment.setenv("TORCH_COMPILE_DISABLE", "1")
        yield request.param


@pytest.fixture(scope="module")
def expected(version: Version, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What stock vLLM says to one question after the other."""
    with running(tmp_path_factory.mktemp("stock"), version, "stock-fcfs") as server:
        return {name: ask(server, name) for name in QUESTIONS}


@pytest.fixture(scope="module")
def server(
    version: Version,
    expected: Answers,  # noqa: ARG001 - one engine at a time
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("trimtab")
    with running(folder, version, "trimtab", version.api_servers) as server:
        yield server


@pytest.fixture(scope="module")
def plane(server: Server) -> Iterator[ControlPlane]:
    plane = ControlPlane(server.control_plane_port)
    eventually(lambda: plane.of_kind("hello"))
    yield plane
    plane.kill()


def publish(server: Server, plane: ControlPlane, discipline: Discipline) -> None:
    weights = zip(CLASSES, (9.0, 1.0, 0.1), strict=True)
    server.publish(
        plane,
        discipline=pb.Discipline.Value(f"DISCIPLINE_{discipline.name}"),
        classes=[class_policy(name, weight=weight) for name, weight in weights],
    )


def test_the_questions_use_what_they_are_about(expected: Answers) -> None:
    said = {name: [text(choice) for choice in choices] for name, choices in expected.items()}
    assert len({*said["sampled choices"], *said["one character"]}) == 4
    assert len({*said["one character"], *said["adapter-1 a"], *said["adapter-2 a"]}) == 3
    assert said["shared beginning"] != said["shared beginning again"]
    assert said["choice"][0] in {"red", "blue"}
    for name in ("schema", "chat with schema"):
        assert json.loads(said[name][0])["ok"] in {"yes", "no"}
    assert expected["stop text"][0]["finish_reason"] == "stop"
    assert len(set(logprobs(expected["logprobs"]))) > 24


def test_the_plugin_runs_inside_that_vllm(plane: ControlPlane, version: Version) -> None:
    assert plane.of_kind("hello")[0].hello.engine_version == version.name


@pytest.mark.parametrize("discipline", Discipline)
def test_under_any_discipline_the_plugin_says_what_stock_vllm_says(
    server: Server, plane: ControlPlane, expected: Answers, discipline: Discipline
) -> None:
    publish(server, plane, discipline)
    answers = ask_all(server)
    for name in QUESTIONS:
        assert words(answers[name]) == words(expected[name]), name
    for name in ("logprobs", "chat with logprobs"):
        assert logprobs(answers[name]) == pytest.approx(logprobs(expected[name]), abs=1e-3)
    assert server.value("trimtab_plugin_faults_total") == 0


@pytest.mark.parametrize("name", ["long prompt", "chat", "schema", "stop text", "adapter-1 a"])
def test_a_stream_says_the_same_bit_by_bit(server: Server, expected: Answers, name: str) -> None:
    path, question = QUESTIONS[name]
    body = {"model": MODEL_NAME, **GREEDY, **question, "stream": True}
    bits = []
    with server.http.stream("POST", path, json=body) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                bits.append(choice["delta"]["content"] if path == CHAT else choice["text"])
    assert len(bits) > 1
    assert "".join(bits) == text(expected[name][0])


def test_clients_that_leave_the_queue_change_nothing_for_those_that_stay(
    server: Server, plane: ControlPlane, expected: Answers
) -> None:
    publish(server, plane, Discipline.APQ)
    gone = server.finished("bulk", "aborted")
    body = {"model": MODEL_NAME, "prompt": "a", "stream": True, **GREEDY}
    body["vllm_xargs"] = {"task_class": "bulk"}
    with server.all_slots_taken(SIZE.max_num_seqs):
        with ExitStack() as leaving:
            for _ in range(8):
                leaving.enter_context(server.http.stream("POST", COMPLETIONS, json=body))
            eventually(lambda: server.waits("bulk", 8))
        eventually(lambda: server.waits("bulk", 0))
    eventually(lambda: server.finished("bulk", "aborted") == gone + 8)
    answers = ask_all(server)
    assert {name: words(answers[name]) for name in QUESTIONS} == {
        name: words(expected[name]) for name in QUESTIONS
    }


def test_what_two_prompts_begin_with_is_computed_once(server: Server) -> None:
    def hits() -> float:
        labels = {"engine": "0", "model_name": MODEL_NAME}
        return server.value("vllm:prefix_cache_hits_total", **labels) or 0.0

    before = hits()
    ask(server, "shared beginning")
    ask(server, "shared beginning again")
    eventually(lambda: hits() - before > len(BEGINNING) / 2)


def test_all_api_servers_serve(server: Server, version: Version) -> None:
    def serving() -> int:
        """How many processes have counted an answer to a completion."""
        return sum(
            any("http_requests_total" in key and COMPLETIONS in key for key, *_ in values)
            for file in server.engine.metrics.glob("counter_*.db")
            if (values := list(MmapedDict.read_all_values_from_file(file)))
        )

    def ask_and_count() -> int:
        ask_all(server)
        return serving()

    eventually(lambda: ask_and_count() == version.api_servers, timeout_s=60.0)
