"""Watches the champion alias and swaps models between two ticks.

Everything that touches the registry runs in one thread of its own. Whatever goes wrong, the
serving version goes on serving; without one, the rule does.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from controlplane.forecaster import Champion, Forecaster
from controlplane.store.sqlite import EventKind
from models.errors import ModelError, RegistryUnavailable

if TYPE_CHECKING:  # importing the registry imports MLflow, which takes seconds
    from collections.abc import Callable

    from controlplane.metrics import Metrics
    from controlplane.publisher import Publisher
    from models.registry import Registry
    from models.succession import Succession

log = structlog.get_logger(__name__)
T = TypeVar("T")


def _change_to(registry: Registry, version: str | None) -> Succession | None:
    """Who made a version the champion, and why; None: the trail does not tell."""
    trail = registry.history()
    return trail[-1] if trail and trail[-1].version == version else None


class ChampionWatch:
    """Keeps the forecaster on the champion.

    Args:
        open_registry: blocking; called until it succeeds once.
    """

    def __init__(
        self,
        *,
        open_registry: Callable[[], Registry],
        forecaster: Forecaster,
        publisher: Publisher,
        metrics: Metrics,
    ) -> None:
        self._open_registry = open_registry
        self._registry: Registry | None = None
        self._forecaster = forecaster
        self._publisher = publisher
        self._metrics = metrics
        self._refused: set[str] = set()
        self._last_problem: str | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="registry")
        self._call: Future[Any] | None = None

    async def poll(self) -> None:
        """Look the alias up once, and load what it names if that is new."""
        try:
            registry = await self._opened()
            version = await self._in_thread(registry.champion_version)
            if version != self._forecaster.serving_version and version not in self._refused:
                await self._serve(registry, version)
            self._last_problem = None
        except ModelError as error:
            self._failed(str(error))

    async def close(self, grace_s: float) -> None:
        """Give the call in flight so long to end, for it may be writing, then let it go."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._call is not None:
            await asyncio.to_thread(wait, [self._call], grace_s)

    async def _in_thread(self, call: Callable[..., T], *values: object) -> T:
        running = self._thread.submit(call, *values)
        self._call = running
        return await asyncio.wrap_future(running)

    async def _opened(self) -> Registry:
        if self._registry is None:
            self._registry = await self._in_thread(self._open_registry)
        return self._registry

    async def _serve(self, registry: Registry, version: str | None) -> None:
        change = await self._in_thread(_change_to, registry, version)
        if version is None:
            self._forecaster.swap("the registry names no champion")
        else:
            self._forecaster.swap(await self._loaded(registry, version))
        self._refused.clear()
        log.info("model changed", version=version)
        if change is None:
            await self._publisher.record(EventKind.MODEL_CHANGED, version or "none")
        else:
            detail = f"{version}: {change.action}: {change.reason}"
            await self._publisher.record(EventKind.MODEL_CHANGED, detail, change.actor)

    async def _loaded(self, registry: Registry, version: str) -> Champion:
        """The version's bundle; one that can't be used is not tried again.

        Raises:
            ModelError: it could not be loaded.
        """
        try:
            return Champion(version, await self._in_thread(registry.load, version))
        except RegistryUnavailable:
            raise
        except ModelError:
            self._refused.add(version)
            raise

    def _failed(self, problem: str) -> None:
        """Count each failure, log each problem once, and tell why there is no champion."""
        self._metrics.champion_failures.inc()
        serving = self._forecaster.serving_version
        if serving is None:
            self._forecaster.swap(f"no champion: {problem}")
        if problem != self._last_problem:
            log.warning("the champion can't be loaded", error=problem, serving=serving)
        self._last_problem = problem
