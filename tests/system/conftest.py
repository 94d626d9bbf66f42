"""The whole system, once per test session: Prometheus, control plane, vLLM, MLflow."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from benchmarks.client import Replay, replay
from benchmarks.demo.parts import Parts, running_parts
from benchmarks.demo.scenario import TRAFFIC
from benchmarks.plan import LoadShape, poisson_arrivals
from benchmarks.stack.engine import MODEL_NAME, EngineSize

TICK_S = 1.0
TTL_S = 6.0
SMALL = EngineSize(hidden=128, layers=2, heads=2, kv_heads=1)


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    folder = tmp_path_factory.mktemp("system")
    with running_parts(
        folder, folder / "mlruns", size=SMALL, tick_s=TICK_S, ttl_s=TTL_S
    ) as running:
        running.wait_ready()
        yield running


@contextmanager
def traffic(parts: Parts, duration_s: float, *, seed: int = 1) -> Iterator["Future[Replay]"]:
    """Light traffic of all classes meanwhile; leaving waits for its last answer."""
    plan = poisson_arrivals(
        TRAFFIC,
        LoadShape(duration_s=duration_s, steady_load=1.0),
        capacity_requests_per_s=4.0,
        seed=seed,
    )
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(
            lambda: asyncio.run(replay(plan, url=parts.engine.url, model=MODEL_NAME, seed=seed))
        )
