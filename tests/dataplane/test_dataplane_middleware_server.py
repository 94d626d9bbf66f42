"""The middleware under a real HTTP server on loopback."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from asgi_echo import COMPLETIONS
from loopback_control_plane import eventually

from dataplane.config import DataplaneConfig
from dataplane.middleware import ClassHeaders, Receive, Scope, Send

HEADERS = {"X-Task-Class": "vip"}


class Streamer:
    """Sends the request back as a first event, and a second one when it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.left = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left.set()
                return
            body, more = body + message["body"], message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send(_event(body))
        await asyncio.to_thread(self.let_go.wait)
        await send({**_event(b"[DONE]"), "more_body": False})
        self.left.clear()
        assert (await receive())["type"] == "http.disconnect"
        self.left.set()


def _event(data: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": b"data: %s\n\n" % data, "more_body": True}


@contextmanager
def serving(app: ClassHeaders) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, lifespan="off", log_level="error")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            eventually(lambda: server.started)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}{COMPLETIONS}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def streamer() -> Iterator[Streamer]:
    streamer = Streamer()
    yield streamer
    streamer.let_go.set()


@pytest.fixture
def url(streamer: Streamer) -> Iterator[str]:
    with serving(ClassHeaders(streamer, config=DataplaneConfig(max_body_bytes=100_000))) as url:
        yield url
        streamer.let_go.set()


def test_events_reach_the_client_as_they_are_sent(url: str, streamer: Streamer) -> None:
    with httpx.stream("POST", url, headers=HEADERS, json={"prompt": "é"}) as answer:
        lines = answer.iter_lines()
        first = next(lines)  # while the application still holds the second event back
        assert json.loads(first.removeprefix("data: ")) == {
            "prompt": "é",
            "vllm_xargs": {"task_class": "vip"},
        }
        streamer.let_go.set()
        assert [line for line in lines if line] == ["data: [DONE]"]


async def test_a_chunked_request_is_understood(url: str, streamer: Streamer) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for chunk in (b'{"pro', b'mpt": ', b'"a"}'):
            yield chunk
            await asyncio.sleep(0.01)

    streamer.let_go.set()
    async with httpx.AsyncClient() as client:
        answer = await client.post(url, content=chunks(), headers=HEADERS)
    assert answer.text.startswith('data: {"prompt": "a", "vllm_xargs": {"task_class": "vip"}}')


def test_a_client_that_leaves_its_stream_is_noticed(url: str, streamer: Streamer) -> None:
    with httpx.stream("POST", url, headers=HEADERS, json={"prompt": "a"}) as answer:
        next(answer.iter_lines())
    streamer.let_go.set()
    eventually(streamer.left.is_set)


def test_a_client_that_leaves_while_it_sends_is_noticed(url: str, streamer: Streamer) -> None:
    target = httpx.URL(url)
    with socket.create_connection((target.host, target.port or 80)) as client:
        client.sendall(
            f"POST {target.path} HTTP/1.1\r\nHost: x\r\nX-Task-Class: vip\r\n"
            'Content-Length: 1000\r\n\r\n{"prompt": "'.encode()
        )
    eventually(streamer.left.is_set)


def test_refusals_leave_the_connection_usable(url: str, streamer: Streamer) -> None:
    streamer.let_go.set()
    with httpx.Client() as client:
        malformed = client.post(url, headers={"X-Task-Class": "no name"}, json={"prompt": "a"})
        too_large = client.post(url, headers=HEADERS, content=b"x" * 200_000)
        good = client.post(url, headers=HEADERS, json={"prompt": "a"})
    assert [malformed.status_code, too_large.status_code, good.status_code] == [400, 413, 200]
    assert malformed.json()["error"]["param"] == "X-Task-Class"
