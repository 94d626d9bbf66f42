"""What the system tests share besides the fixture: pace, traffic, a model that is wrong."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch

from benchmarks.client import Replay, replay
from benchmarks.demo.parts import Parts
from benchmarks.demo.scenario import TRAFFIC
from benchmarks.plan import LoadShape, poisson_arrivals
from benchmarks.stack.engine import MODEL_NAME
from models.architecture import ARCHITECTURE
from models.bundle import Bundle, Provenance
from models.features import DESCRIPTOR
from models.lstm import STEERING_ROW, ResidualLstm

TICK_S = 1.0
TTL_S = 6.0


@contextmanager
def traffic(parts: Parts, duration_s: float, *, seed: int = 1) -> Iterator[Future[Replay]]:
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


def patient() -> Bundle:
    """All the say that a network has, for the classes whose SLO leaves most time."""
    network = ResidualLstm()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        column = 3 * ARCHITECTURE.hidden + DESCRIPTOR.index("log_ttft_slo_s")
        network.compare.weight[0, column] = 1.0
        network.emit.weight[STEERING_ROW, 0] = 20.0
    return Bundle(network.eval(), Provenance("test", seed=0))
