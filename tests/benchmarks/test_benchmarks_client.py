"""The load client against a real HTTP server on loopback."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from benchmarks.client import replay
from benchmarks.plan import Arrival

Script = Callable[[dict[str, object]], list[bytes]]


@asynccontextmanager
async def _server(script: Script) -> AsyncIterator[str]:
    """Answer each POST with the raw chunks that ``script`` gives for its body."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        for chunk in script(json.loads(await reader.readexactly(length))):
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"


def _ok(*events: bytes) -> list[bytes]:
    return [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", *events]


def _token(text: str) -> bytes:
    return (
        b"data: " + json.dumps({"choices": [{"text": text}]}, ensure_ascii=False).encode() + b"\n\n"
    )


USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 2}}\n\n'
DONE = b"data: [DONE]\n\n"
ONE = (Arrival(0.0, "vip", 5, 2),)


async def test_times_the_first_token_and_the_last() -> None:
    async with _server(lambda _body: _ok(_token("a"), _token("b"), USAGE, DONE)) as url:
        run = await replay(ONE, url=url, model="m", seed=1)
    (answer,) = run.answers
    assert answer.failure is None
    assert answer.output_tokens == 2
    assert answer.ttft_s is not None
    assert answer.e2e_s is not None
    assert 0 < answer.ttft_s < answer.e2e_s <= run.span_s


@pytest.mark.parametrize("odd", ["\x85", "\u2028", "\x0b", "\x1c", "\r", "data: [DONE]"])
async def test_a_token_may_hold_any_character(odd: str) -> None:
    async with _server(lambda _body: _ok(_token(odd), _token("b"), USAGE, DONE)) as url:
        run = await replay(ONE, url=url, model="m", seed=1)
    assert run.answers[0].failure is None


async def test_events_may_be_cut_anywhere() -> None:
    stream = _token("a") + _token("b") + USAGE + DONE
    pieces = [stream[i : i + 7] for i in range(0, len(stream), 7)]
    async with _server(lambda _body: _ok(*pieces)) as url:
        run = await replay(ONE, url=url, model="m", seed=1)
    assert run.answers[0].output_tokens == 2


async def test_a_refusal_is_a_failure_with_its_reason() -> None:
    refusal = b"HTTP/1.1 503 Busy\r\nConnection: close\r\n\r\nqueue full"
    async with _server(lambda _body: [refusal]) as url:
        run = await replay(ONE, url=url, model="m", seed=1)
    assert run.answers[0].failure == "HTTP 503: queue full"


async def test_a_connection_that_the_server_may_have_closed_by_now_is_not_used_again() -> None:
    connections: list[asyncio.Task[object] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.current_task())
        loop = asyncio.get_running_loop()
        idle_since_s = loop.time()
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                if loop.time() - idle_since_s > 2.5:
                    break
                body = _token("a") + USAGE + DONE
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                idle_since_s = loop.time()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        plan = [Arrival(at_s, "vip", 5, 2) for at_s in (0.0, 3.0)]
        run = await replay(plan, url=url, model="m", seed=1)
        await asyncio.gather(*filter(None, connections))
    assert [answer.failure for answer in run.answers] == [None, None]


async def test_a_stream_that_breaks_off_is_a_failure() -> None:
    async with _server(lambda _body: _ok(_token("a"))) as url:
        run = await replay(ONE, url=url, model="m", seed=1)
    assert run.answers[0].failure is not None
    assert run.answers[0].e2e_s is None


async def test_an_engine_that_is_away_is_a_failure_not_an_exception() -> None:
    async with _server(lambda _body: []) as url:
        pass
    run = await replay(ONE, url=url, model="m", seed=1)
    assert run.answers[0].failure is not None


async def test_the_class_and_the_exact_lengths_travel_and_a_seed_repeats_the_prompts() -> None:
    bodies: list[dict[str, object]] = []

    def record(body: dict[str, object]) -> list[bytes]:
        bodies.append(body)
        return _ok(_token("a"), USAGE, DONE)

    async with _server(record) as url:
        await replay(ONE, url=url, model="m", seed=1)
        await replay(ONE, url=url, model="m", seed=1)
        await replay(ONE, url=url, model="m", seed=2)
    assert bodies[0]["vllm_xargs"] == {"task_class": "vip"}
    assert bodies[0]["max_tokens"] == 2
    prompts = [body["prompt"] for body in bodies]
    assert all(isinstance(prompt, list) and len(prompt) == 5 for prompt in prompts)
    assert prompts[0] == prompts[1] != prompts[2]
