"""The whole system, once per test session: Prometheus, control plane, vLLM, MLflow."""

from collections.abc import Iterator

import pytest
from live_system import TICK_S, TTL_S

from benchmarks.demo.parts import Parts, running_parts
from benchmarks.stack.engine import EngineSize

SMALL = EngineSize(hidden=128, layers=2, heads=2, kv_heads=1)


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    folder = tmp_path_factory.mktemp("system")
    with running_parts(
        folder, folder / "mlruns", size=SMALL, tick_s=TICK_S, ttl_s=TTL_S
    ) as running:
        running.wait_ready()
        yield running
