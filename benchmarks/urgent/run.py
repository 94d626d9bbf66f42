"""Keep an engine's slots full of long work, and ask for something urgent now and then."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.client import replay
from benchmarks.errors import EngineRefused
from benchmarks.plan import Arrival
from benchmarks.stack.engine import MODEL_NAME
from benchmarks.urgent.scenario import (
    APART_S,
    LONG_AT_A_TIME,
    LONG_REQUEST,
    PRIORITIES,
    URGENT_PER_ROUND,
    URGENT_REQUEST,
    Contender,
)

_FULL_TIMEOUT_S = 60.0

Ask = Callable[[Arrival], Awaitable[float]]
"""Sends one request and gives its TTFT."""


@dataclass(frozen=True, slots=True)
class Round:
    """One stretch on one engine.

    Attributes:
        alone_s: TTFT of the urgent request on the idle engine, just before.
        urgent_ttft_s: of each urgent request, with all slots taken.
        tokens_per_s: generated for all requests meanwhile.
        preemptions: meanwhile.
    """

    contender: Contender
    alone_s: float
    urgent_ttft_s: tuple[float, ...]
    tokens_per_s: float
    preemptions: int


async def run_round(contender: Contender, url: str, seeds: Iterator[int]) -> Round:
    """Fill the slots, ask ``URGENT_PER_ROUND`` times, and leave the engine idle.

    Raises:
        EngineRefused: a request failed, or the slots did not fill.
    """
    ask = partial(_ask, contender, url, seeds)
    alone_s = await ask(URGENT_REQUEST)
    async with _slots_full_of_long_work(url, ask):
        before = await asyncio.to_thread(_counters, url)
        start_s = asyncio.get_running_loop().time()
        urgent_ttft_s: list[float] = []
        for _ in range(URGENT_PER_ROUND):
            await asyncio.sleep(APART_S)
            urgent_ttft_s.append(await ask(URGENT_REQUEST))
        span_s = asyncio.get_running_loop().time() - start_s
        after = await asyncio.to_thread(_counters, url)
    await _until_idle(url)
    grown = {name: after[name] - before[name] for name in before}
    return Round(
        contender=contender,
        alone_s=alone_s,
        urgent_ttft_s=tuple(urgent_ttft_s),
        tokens_per_s=grown["vllm:generation_tokens_total"] / span_s,
        preemptions=round(grown["vllm:num_preemptions_total"]),
    )


async def _ask(contender: Contender, url: str, seeds: Iterator[int], arrival: Arrival) -> float:
    priorities: Mapping[str, int] | None = (
        PRIORITIES if contender.scheduler == "stock-priority" else None
    )
    run = await replay(
        [arrival], url=url, model=MODEL_NAME, seed=next(seeds), priorities=priorities
    )
    (answer,) = run.answers
    if answer.ttft_s is None:
        raise EngineRefused(f"a request failed: {answer.failure}", fix="read the engine's log")
    return answer.ttft_s


@asynccontextmanager
async def _slots_full_of_long_work(url: str, ask: Ask) -> AsyncIterator[None]:
    async def keep_asking() -> None:
        while True:
            await ask(LONG_REQUEST)

    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(keep_asking()) for _ in range(LONG_AT_A_TIME)]
        await _until(url, lambda counters: counters["vllm:num_requests_waiting"] > 0)
        yield
        for worker in workers:
            worker.cancel()


async def _until_idle(url: str) -> None:
    await _until(
        url,
        lambda counters: (
            counters["vllm:num_requests_running"] + counters["vllm:num_requests_waiting"] == 0
        ),
    )


async def _until(url: str, holds: Callable[[Mapping[str, float]], bool]) -> None:
    try:
        async with asyncio.timeout(_FULL_TIMEOUT_S):
            while not holds(await asyncio.to_thread(_counters, url)):  # noqa: ASYNC110 - it polls another process
                await asyncio.sleep(0.25)
    except TimeoutError as error:
        raise EngineRefused(
            f"the engine's queue is not as expected after {_FULL_TIMEOUT_S:.0f} s",
            fix="read the engine's log",
        ) from error


_COUNTERS = (
    "vllm:generation_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
)


def _counters(url: str) -> dict[str, float]:
    page = httpx.get(f"{url}/metrics", timeout=10.0).text
    counters = dict.fromkeys(_COUNTERS, 0.0)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in counters:
                counters[sample.name] += sample.value
    return counters


def seeds_from(seed: int) -> Iterator[int]:
    """Fresh prompts for each request: the prefix cache is to help nobody."""
    return itertools.count(seed * 1_000_000)
