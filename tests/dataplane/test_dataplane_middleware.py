import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from asgi_echo import COMPLETIONS, Answer, Echo, call, parts
from hypothesis import given
from hypothesis import strategies as st
from loopback_control_plane import HandClock

from dataplane.config import DataplaneConfig
from dataplane.middleware import ClassHeaders
from dataplane.refusals import NoticeWriter

VIP = (b"x-task-class", b"vip")
BODY = b'{"prompt": "a", "vllm_xargs": {"task_class": "free", "seed": 7}}'


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def app(echo: Echo) -> ClassHeaders:
    return ClassHeaders(echo, config=DataplaneConfig(max_body_bytes=1000))


@pytest.fixture
def guarded(echo: Echo, tmp_path: Path, clock: HandClock) -> ClassHeaders:
    """Refuses ``batch`` for the next 2.3 seconds."""
    writer = NoticeWriter(tmp_path, engine_id="e1", interval_s=0.25)
    writer.publish(frozenset({"batch"}), 2.3, clock.wall_s())
    config = DataplaneConfig(max_body_bytes=1000, held_back="refuse", state_dir=str(tmp_path))
    return ClassHeaders(echo, config=config, clock=clock)


def body_naming(task_class: object) -> bytes:
    return json.dumps({"vllm_xargs": {"task_class": task_class}}).encode()


@pytest.mark.parametrize(
    "path", [COMPLETIONS, "/v1/chat/completions", "/v1/responses", "/v1/messages"]
)
async def test_headers_reach_the_body_of_each_endpoint(
    app: ClassHeaders, echo: Echo, path: str
) -> None:
    answer = await call(app, parts(BODY), [VIP, (b"x-tenant", b"acme")], path=path)
    assert answer.status == 200
    assert json.loads(echo.bodies[0]) == {
        "prompt": "a",
        "vllm_xargs": {"task_class": "vip", "tenant": "acme", "seed": 7},
    }


async def test_the_length_is_that_of_the_new_body(app: ClassHeaders, echo: Echo) -> None:
    await call(app, parts(BODY), [VIP, (b"Content-Length", b"%d" % len(BODY)), (b"a", b"b")])
    assert echo.headers() == {
        b"x-task-class": b"vip",
        b"a": b"b",
        b"content-length": b"%d" % len(echo.bodies[0]),
    }


async def test_a_body_in_chunks_arrives_whole(app: ClassHeaders, echo: Echo) -> None:
    chunks = (BODY[:10], b"", BODY[10:])
    await call(app, parts(*chunks), [VIP, (b"transfer-encoding", b"chunked")])
    assert json.loads(echo.bodies[0])["vllm_xargs"]["task_class"] == "vip"
    assert b"transfer-encoding" not in echo.headers()


async def test_a_server_under_a_path_of_a_proxy_is_recognised(
    app: ClassHeaders, echo: Echo
) -> None:
    await call(app, parts(BODY), [VIP], path=f"/llm{COMPLETIONS}", root_path="/llm")
    assert json.loads(echo.bodies[0])["vllm_xargs"]["task_class"] == "vip"


@pytest.mark.parametrize(
    "scope",
    [
        {"method": "GET", "path": "/metrics"},
        {"method": "OPTIONS"},
        {"path": "/v1/embeddings"},
        {"path": "/v1/completions/render"},
        {"type": "websocket", "path": "/v1/realtime"},
        {"type": "lifespan"},
    ],
)
async def test_what_is_no_generation_passes_whatever_its_headers(
    app: ClassHeaders, echo: Echo, scope: dict[str, str]
) -> None:
    await call(app, parts(BODY), [(b"x-task-class", b"no name")], **scope)
    assert len(echo.scopes) == 1
    assert echo.bodies in ([], [BODY])


async def test_without_headers_a_request_is_not_even_read(app: ClassHeaders, echo: Echo) -> None:
    chunks = (b"{" * 2000, b"", b"}")
    await call(app, parts(*chunks), [(b"content-length", b"2001")])
    assert echo.bodies == [b"".join(chunks)]
    assert echo.headers() == {b"content-length": b"2001"}


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b'{"vllm_xargs": 1}', b"\xff"])
async def test_a_body_that_is_no_object_reaches_vllm_untouched(
    app: ClassHeaders, echo: Echo, body: bytes
) -> None:
    length = (b"content-length", b"%d" % len(body))
    await call(app, parts(body), [VIP, length])
    assert echo.bodies == [body]
    assert list(echo.scopes[0]["headers"]) == [VIP, length]


async def test_a_malformed_header_is_answered_as_vllm_answers(
    app: ClassHeaders, echo: Echo
) -> None:
    answer = await call(app, parts(BODY), [(b"x-task-class", b"v.i.p!")])
    assert answer.status == 400
    assert answer.headers[b"content-type"] == b"application/json"
    assert answer.error == {
        "message": "header X-Task-Class must be 1 to 64 of A-Z a-z 0-9 _ . -",
        "type": "BadRequestError",
        "param": "X-Task-Class",
        "code": 400,
    }
    assert not echo.scopes


async def test_a_body_beyond_the_bound_is_refused_before_all_of_it_is_held(
    app: ClassHeaders, echo: Echo
) -> None:
    taken = 0

    def endless() -> object:
        nonlocal taken
        while True:
            taken += 1
            yield {"type": "http.request", "body": b"x" * 400, "more_body": True}

    answer = await call(app, endless(), [VIP])  # type: ignore[arg-type] # messages of one kind
    assert (answer.status, taken) == (413, 3)
    assert "1000 bytes (TRIMTAB_MAX_BODY_BYTES)" in answer.error["message"]
    assert not echo.scopes


async def test_a_client_that_leaves_while_it_sends_is_seen_to_leave(
    app: ClassHeaders, echo: Echo
) -> None:
    answer = await call(app, [{"type": "http.request", "body": b"{", "more_body": True}], [VIP])
    assert echo.disconnects == 1
    assert not answer.messages


async def test_a_client_that_leaves_after_its_request_is_seen_to_leave() -> None:
    seen = []

    async def listener(scope: object, receive: object, send: object) -> None:  # noqa: ARG001 - ASGI's signature
        seen.extend([await receive(), await receive()])  # type: ignore[operator] # a Receive

    await call(ClassHeaders(listener, config=DataplaneConfig()), parts(BODY), [VIP])
    assert [message["type"] for message in seen] == ["http.request", "http.disconnect"]


async def test_a_refused_class_in_a_header_gets_503_unread(
    guarded: ClassHeaders, echo: Echo
) -> None:
    answer = await call(guarded, iter(()), [(b"x-task-class", b"batch")])
    assert (answer.status, answer.headers[b"retry-after"]) == (503, b"3")
    assert answer.error["type"] == "ServiceUnavailableError"
    assert "class batch is not admitted" in answer.error["message"]
    assert not echo.scopes


async def test_a_refused_class_in_the_body_gets_503(guarded: ClassHeaders, echo: Echo) -> None:
    for headers in ([], [(b"x-tenant", b"acme")]):
        answer = await call(guarded, parts(body_naming("batch")), headers)
        assert answer.status == 503
    assert not echo.scopes


@pytest.mark.parametrize("claim", ["vip", "Batch", 7, None, ["batch"]])
async def test_other_classes_pass_with_the_body_as_it_was(
    guarded: ClassHeaders, echo: Echo, claim: object
) -> None:
    assert (await call(guarded, parts(body_naming(claim)))).status == 200
    assert echo.bodies == [body_naming(claim)]


async def test_a_header_wins_over_a_refused_class_in_the_body(guarded: ClassHeaders) -> None:
    assert (await call(guarded, parts(body_naming("batch")), [VIP])).status == 200


async def test_a_body_too_large_to_look_into_waits_in_the_queue(
    guarded: ClassHeaders, echo: Echo
) -> None:
    chunks = (b"[" * 900, b"[" * 900, b"]" * 900)
    assert (await call(guarded, parts(*chunks))).status == 200
    assert echo.bodies == [b"".join(chunks)]


async def test_a_class_is_admitted_again_when_the_engine_falls_silent(
    guarded: ClassHeaders, clock: HandClock
) -> None:
    clock.now_s += 10.0
    assert (await call(guarded, parts(body_naming("batch")))).status == 200


async def test_a_retry_is_at_least_a_second_away(
    guarded: ClassHeaders, clock: HandClock, tmp_path: Path
) -> None:
    writer = NoticeWriter(tmp_path, engine_id="e1", interval_s=0.25)
    writer.publish(frozenset({"batch"}), 0.0, clock.wall_s())
    answer = await call(guarded, parts(body_naming("batch")))
    assert answer.headers[b"retry-after"] == b"1"


async def test_while_requests_are_to_wait_a_notice_refuses_nobody(
    echo: Echo, tmp_path: Path, clock: HandClock
) -> None:
    writer = NoticeWriter(tmp_path, engine_id="e1", interval_s=0.25)
    writer.publish(frozenset({"batch"}), 1.0, clock.wall_s())
    config = DataplaneConfig(state_dir=str(tmp_path))
    app = ClassHeaders(echo, config=config, clock=clock)
    assert (await call(app, parts(body_naming("batch")))).status == 200


names = st.sampled_from([b"x-task-class", b"X-Task-Class", b"x-tenant", b"content-length", b"a"])
values = st.sampled_from([b"vip", b"batch", b"", b"acme"]) | st.binary(max_size=80)
words = st.text(max_size=40)
chunked = st.lists(st.binary(max_size=200), min_size=1, max_size=4) | st.builds(
    lambda document, cuts: split(json.dumps(document).encode(), cuts),
    st.dictionaries(
        st.sampled_from(["prompt", "vllm_xargs"]),
        st.none() | words | st.dictionaries(st.just("task_class"), words | st.integers()),
    ),
    st.lists(st.integers(0, 50), max_size=3),
)


def split(whole: bytes, cuts: list[int]) -> list[bytes]:
    return [whole[a:b] for a, b in pairwise([0, *sorted(cuts), len(whole) + 50])]


@given(st.lists(st.tuples(names, values), max_size=4), chunked, st.booleans())
async def test_whatever_comes_is_answered_or_passed_on_and_never_a_fault(
    tmp_path_factory: pytest.TempPathFactory,
    headers: list[tuple[bytes, bytes]],
    chunks: list[bytes],
    refuses: bool,  # noqa: FBT001 - Hypothesis passes by position
) -> None:
    clock, echo = HandClock(), Echo()
    directory = tmp_path_factory.getbasetemp() / "fuzzed-notices"
    refused = frozenset({"batch"} if refuses else ())
    NoticeWriter(directory, engine_id="e1", interval_s=1.0).publish(refused, 1.0, clock.wall_s())
    config = DataplaneConfig(max_body_bytes=1000, held_back="refuse", state_dir=str(directory))
    answer: Answer = await call(
        ClassHeaders(echo, config=config, clock=clock), parts(*chunks), headers
    )
    assert answer.status in (200, 400, 413, 503)
    if answer.status != 200:
        assert answer.error["code"] == answer.status
        assert not echo.scopes
    elif echo.bodies[0] != b"".join(chunks):
        before, after = json.loads(b"".join(chunks)), json.loads(echo.bodies[0])
        assert {**before, "vllm_xargs": None} == {**after, "vllm_xargs": None}


def test_an_api_server_loads_neither_vllm_nor_grpc_with_it() -> None:
    heavy = "{'vllm', 'torch', 'grpc', 'numpy', 'prometheus_client', 'google.protobuf'}"
    script = f"import sys, dataplane.middleware; print({heavy} & set(sys.modules))"
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "set()"
