"""The demo's course: start the parts, measure the machine, alternate the policies."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial

from benchmarks.capacity import measure_capacity_requests_per_s
from benchmarks.client import replay
from benchmarks.demo.parts import Parts
from benchmarks.demo.scenario import CLASSES, TRAFFIC, Block, blocks
from benchmarks.demo.state import DemoState, FinishedBlock
from benchmarks.engine_metrics import EngineReading, read_engine
from benchmarks.errors import ChildFailed, PolicyNotApplied
from benchmarks.results import PolicyResult, summarise
from benchmarks.stack.engine import MODEL_NAME
from controlplane.client import WeightsClient
from controlplane.errors import ClientError
from controlplane.snapshot import Discipline, Mode

_CAPACITY_REQUESTS = 80
_OBSERVE_EVERY_S = 1.0
_APPLY_TIMEOUT_S = 30.0
_LEARNED_TIMEOUT_S = 180.0
_BLOCK_PROMPTS = 2
"""Sets the blocks' prompts apart from those of the capacity measurement."""
_DISCIPLINES = {"fcfs": Discipline.FCFS, "learned": Discipline.APQ}


async def run_demo(
    parts: Parts, state: DemoState, *, duration_s: float, seed: int, on_stage: Callable[[str], None]
) -> None:
    """Run the whole demo on parts that were just started; what it finds is in ``state``.

    Raises:
        BenchmarkError: a part failed.
    """
    on_stage("starting Prometheus, the control plane and a vLLM engine")
    await asyncio.to_thread(parts.wait_ready)
    client = WeightsClient(parts.control_plane.address)
    async with _observing(parts, client, state):
        on_stage("waiting for the control plane to load the champion")
        await _until_learned(parts, state)
        on_stage("measuring what this machine can serve")
        capacity = await measure_capacity_requests_per_s(
            TRAFFIC, url=parts.engine.url, model=MODEL_NAME, requests=_CAPACITY_REQUESTS, seed=seed
        )
        state.capacity_requests_per_s = capacity
        plan = blocks(duration_s, capacity_requests_per_s=capacity, seed=seed)
        state.expected = sum(len(block.plan) for block in plan)
        for number, block in enumerate(plan, 1):
            on_stage(f"block {number} of {len(plan)}: {block.policy}")
            await _run_block(block, parts, client, state, seed=seed)


def policy_results(finished: Iterable[FinishedBlock]) -> dict[str, PolicyResult]:
    """Compare the policies on the arrivals that both have seen; empty when there are none."""
    done = list(finished)
    pairs = [{block.pair for block in done if block.policy == name} for name in _DISCIPLINES]
    shared = set.intersection(*pairs)
    if not shared:
        return {}
    return {
        policy: _pool([block for block in done if block.policy == policy and block.pair in shared])
        for policy in _DISCIPLINES
    }


def _pool(blocks_of_policy: list[FinishedBlock]) -> PolicyResult:
    return summarise(
        [block.replay for block in blocks_of_policy],
        CLASSES,
        preemptions=_sum(block.preemptions for block in blocks_of_policy),
        recomputed_tokens=_sum(block.recomputed_tokens for block in blocks_of_policy),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    """None as soon as one of them is unknown."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


async def _run_block(
    block: Block, parts: Parts, client: WeightsClient, state: DemoState, *, seed: int
) -> None:
    await _switch(block.policy, parts, client)
    state.policy = block.policy
    before = await asyncio.to_thread(read_engine, parts.engine.url)
    run = await replay(
        block.plan,
        url=parts.engine.url,
        model=MODEL_NAME,
        # Fresh prompts of the same lengths, so that the prefix cache helps neither.
        seed=(seed, len(state.finished), _BLOCK_PROMPTS),
        on_answer=state.count,
    )
    if not parts.engine.child.running:
        raise ChildFailed("vllm", "ended in mid-run", parts.engine.child.log)
    after = await asyncio.to_thread(read_engine, parts.engine.url)
    state.finished.append(
        FinishedBlock(
            block.policy,
            block.pair,
            run,
            preemptions=_grown(before, after, lambda reading: reading.preemptions),
            recomputed_tokens=_grown(before, after, lambda reading: reading.recomputed_tokens),
        )
    )


def _grown(
    before: EngineReading | None,
    after: EngineReading | None,
    counter: Callable[[EngineReading], int | None],
) -> int | None:
    earlier, later = (None if reading is None else counter(reading) for reading in (before, after))
    return None if earlier is None or later is None else later - earlier


async def _until_learned(parts: Parts, state: DemoState) -> None:
    """Wait for weights of the champion: a first start creates the registry, which takes a while.

    Raises:
        ChildFailed: they did not come.
    """
    try:
        async with asyncio.timeout(_LEARNED_TIMEOUT_S):
            while not _learned(state):  # noqa: ASYNC110 - the observer polls another process
                await asyncio.sleep(_OBSERVE_EVERY_S / 4)
    except TimeoutError as error:
        why = "no snapshot" if state.snapshot is None else state.snapshot.mode_reason
        child = parts.control_plane.child
        raise ChildFailed(child.name, f"gave no learned weights ({why})", child.log) from error


def _learned(state: DemoState) -> bool:
    return state.snapshot is not None and state.snapshot.mode is Mode.LEARNED


async def _switch(policy: str, parts: Parts, client: WeightsClient) -> None:
    """Order the policy's discipline and wait until the engine has applied it.

    Raises:
        PolicyNotApplied: the control plane is away, or its order does not arrive.
    """
    order = partial(client.set_discipline, actor="demo", reason=f"a block of {policy}")
    try:
        version = await asyncio.to_thread(order, _DISCIPLINES[policy])
        async with asyncio.timeout(_APPLY_TIMEOUT_S):
            while not await _applied(version, parts):  # noqa: ASYNC110 - it polls another process
                await asyncio.sleep(_OBSERVE_EVERY_S / 4)
    except ClientError as error:
        raise PolicyNotApplied(policy, str(error)) from error
    except TimeoutError as error:
        raise PolicyNotApplied(policy, f"not within {_APPLY_TIMEOUT_S:.0f} s") from error


async def _applied(version: int, parts: Parts) -> bool:
    reading = await asyncio.to_thread(read_engine, parts.engine.url)
    return reading is not None and (reading.snapshot_version or 0) >= version


@asynccontextmanager
async def _observing(parts: Parts, client: WeightsClient, state: DemoState) -> AsyncIterator[None]:
    """Keep the state's reading and snapshot fresh meanwhile."""
    task = asyncio.create_task(_observe(parts, client, state))
    try:
        yield
    finally:
        task.cancel()


async def _observe(parts: Parts, client: WeightsClient, state: DemoState) -> None:
    while True:
        state.reading = await asyncio.to_thread(read_engine, parts.engine.url) or state.reading
        try:
            state.snapshot = await asyncio.to_thread(client.get)
            state.control_plane_answers = True
        except ClientError:
            # It may be down for a while: the engine goes on, and so does the demo.
            state.control_plane_answers = False
        await asyncio.sleep(_OBSERVE_EVERY_S)
