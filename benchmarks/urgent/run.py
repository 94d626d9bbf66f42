"""Keep an engine's slots full of long work, and ask for something urgent now and then."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.client import replay
from benchmarks.errors import EngineRefused
from benchmarks.plan import Arrival
from benchmarks.stack.controlplane import ControlPlane
from benchmarks.stack.cores import core_for_engine
from benchmarks.stack.engine import MODEL_NAME, VllmEngine
from benchmarks.stack.process import free_port
from benchmarks.urgent.scenario import (
    APART_S,
    CLASSES,
    CONTENDERS,
    LONG_AT_A_TIME,
    LONG_REQUEST,
    PRIORITIES,
    SIZE,
    URGENT_PER_ROUND,
    URGENT_REQUEST,
    Contender,
)

_FULL_TIMEOUT_S = 60.0
_NOBODY = "http://127.0.0.1:9"

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


async def measure(
    folder: Path,
    order: Sequence[Contender],
    *,
    seed: int,
    on_round: Callable[[Contender], None],
) -> AsyncIterator[Round]:
    """Start both engines and the control plane, and run the rounds one after the other.

    There is no Prometheus: the control plane publishes the weights that need no window.

    Raises:
        BenchmarkError: a part failed.
    """
    port = free_port()
    seeds = itertools.count(seed * 1_000_000)  # Fresh prompts: the prefix cache is to help nobody.
    with ExitStack() as stack:
        core = stack.enter_context(core_for_engine())
        control_plane = ControlPlane(
            folder / "controlplane",
            prometheus_url=_NOBODY,
            classes=CLASSES,
            mlruns=folder / "mlruns",
            port=port,
        )
        stack.callback(control_plane.stop)
        engines = {}
        for contender in CONTENDERS:
            engines[contender] = engine = VllmEngine(
                folder / contender.scheduler,
                scheduler=contender.scheduler,
                control_plane=f"127.0.0.1:{port}",
                size=SIZE,
                core=core,
            )
            stack.enter_context(engine.child)
        for engine in engines.values():
            await asyncio.to_thread(engine.wait_ready)
        for contender in order:
            on_round(contender)
            yield await run_round(contender, engines[contender].url, seeds)


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
