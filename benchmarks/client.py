"""Sends an arrival plan to an OpenAI-compatible engine and times every answer.

Open loop: a request is sent when the plan says so, however many are still out.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from benchmarks.plan import Arrival

_REQUEST_TIMEOUT_S = 300.0
_IDLE_CONNECTION_S = 2.0
"""Kept open for so long. vLLM closes idle connections after 5 s; a request that is sent at that
very moment fails."""
# Token ids below this are bytes in the demo's tokenizer, and words in any other.
_PLAIN_TOKEN_IDS = (10, 250)
_EVENT_PREFIX = b"data: "
_END_MARK = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client saw of one request. Times are seconds since it was due.

    Attributes:
        ttft_s: None when no token came.
        e2e_s: None when the answer is not complete.
        failure: why it failed; None when it did not.
    """

    arrival: Arrival
    ttft_s: float | None
    e2e_s: float | None
    output_tokens: int
    failure: str | None = None

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None for fewer than two tokens."""
        if self.ttft_s is None or self.e2e_s is None or self.output_tokens < 2:  # noqa: PLR2004 - two tokens have one gap
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Replay:
    """All answers to one plan, and how long it took until the last of them."""

    answers: tuple[Answer, ...]
    span_s: float


async def replay(
    plan: Sequence[Arrival],
    *,
    url: str,
    model: str,
    seed: int | Sequence[int],
    priorities: Mapping[str, int] | None = None,
    on_answer: Callable[[Answer], None] = lambda _answer: None,
) -> Replay:
    """Send ``plan`` and wait for every answer.

    The prompts' tokens come from ``seed``. An engine with prefix caching answers
    prompts that it has seen without work: give each replay of a plan a seed of its
    own, or the later one is no comparison. ``priorities`` by class are for vLLM's own
    ``priority`` policy; other engines refuse them. Cancelling this closes all connections,
    which makes the engine abort the requests.
    """
    rng = np.random.default_rng(seed)
    prompts = [
        rng.integers(*_PLAIN_TOKEN_IDS, size=arrival.prompt_tokens).tolist() for arrival in plan
    ]
    limits = httpx.Limits(
        max_connections=None, max_keepalive_connections=64, keepalive_expiry=_IDLE_CONNECTION_S
    )
    timeout = httpx.Timeout(_REQUEST_TIMEOUT_S)
    async with httpx.AsyncClient(base_url=url, timeout=timeout, limits=limits) as http:
        start_s = time.perf_counter()

        async def send(arrival: Arrival, prompt: list[int]) -> Answer:
            body = _body(model, arrival, prompt)
            if priorities is not None:
                body["priority"] = priorities[arrival.task_class]
            answer = await _send_when_due(http, body, arrival, start_s + arrival.at_s)
            on_answer(answer)
            return answer

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(send(*each)) for each in zip(plan, prompts, strict=True)]
        span_s = time.perf_counter() - start_s
    return Replay(tuple(task.result() for task in tasks), span_s)


async def _send_when_due(
    http: httpx.AsyncClient, body: dict[str, object], arrival: Arrival, due_s: float
) -> Answer:
    await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
    return await _ask(http, body, arrival, due_s)


def _body(model: str, arrival: Arrival, prompt: list[int]) -> dict[str, object]:
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": arrival.output_tokens,
        "ignore_eos": True,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "vllm_xargs": {"task_class": arrival.task_class},
    }


async def _ask(
    http: httpx.AsyncClient, body: dict[str, object], arrival: Arrival, due_s: float
) -> Answer:
    ttft_s: float | None = None
    output_tokens = 0
    try:
        async with http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                reason = (await response.aread()).decode(errors="replace")[:200]
                return Answer(arrival, None, None, 0, f"HTTP {response.status_code}: {reason}")
            async for event in _events(response):
                if event.get("choices") and ttft_s is None:
                    ttft_s = time.perf_counter() - due_s
                if event.get("usage"):
                    output_tokens = event["usage"]["completion_tokens"]
    except (httpx.HTTPError, json.JSONDecodeError) as error:
        return Answer(arrival, ttft_s, None, output_tokens, f"{type(error).__name__}: {error}")
    if output_tokens == 0:
        return Answer(arrival, ttft_s, None, 0, "the stream ended without an answer")
    return Answer(arrival, ttft_s, time.perf_counter() - due_s, output_tokens)


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Decode the server-sent events of a stream, up to its end mark.

    Lines end at LF only: a token may hold characters, such as U+0085, that
    ``str.splitlines`` takes for a line's end too.
    """
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            data = line.strip()
            if data.startswith(_EVENT_PREFIX) and data != _END_MARK:
                yield json.loads(data.removeprefix(_EVENT_PREFIX))
