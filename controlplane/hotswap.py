"""Watches the champion alias and swaps models between two ticks.

Whatever goes wrong, the serving version goes on serving; without one, the rule does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from controlplane.drift import prepare
from controlplane.forecaster import Champion, Forecaster
from controlplane.store.sqlite import EventKind
from models.errors import ModelError, RegistryUnavailable

if TYPE_CHECKING:  # importing the registry imports MLflow, which takes seconds
    from controlplane.metrics import Metrics
    from controlplane.publisher import Publisher
    from controlplane.registry_thread import RegistryThread
    from models.bundle import Bundle
    from models.registry import Registry
    from models.succession import Succession

log = structlog.get_logger(__name__)


def _change_to(registry: Registry, version: str | None) -> Succession | None:
    """Who made a version the champion, and why; None: the trail does not tell."""
    trail = registry.history()
    return trail[-1] if trail and trail[-1].version == version else None


def _load(registry: Registry, version: str) -> Bundle:
    """The version, and what the first tick with it would have to import."""
    prepare()
    return registry.load(version)


class ChampionWatch:
    """Keeps the forecaster on the champion."""

    def __init__(
        self,
        *,
        registry: RegistryThread,
        forecaster: Forecaster,
        publisher: Publisher,
        metrics: Metrics,
    ) -> None:
        self._registry = registry
        self._forecaster = forecaster
        self._publisher = publisher
        self._metrics = metrics
        self._refused: set[str] = set()
        self._last_problem: str | None = None

    async def poll(self) -> None:
        """Look the alias up once, and load what it names if that is new."""
        try:
            version = await self._registry.call(lambda registry: registry.champion_version())
            if version != self._forecaster.serving_version and version not in self._refused:
                await self._serve(version)
            self._last_problem = None
        except ModelError as error:
            self._failed(str(error))

    async def _serve(self, version: str | None) -> None:
        change = await self._registry.call(lambda registry: _change_to(registry, version))
        if version is None:
            self._forecaster.swap("the registry names no champion")
        else:
            self._forecaster.swap(await self._loaded(version))
        self._refused.clear()
        log.info("model changed", version=version)
        if change is None:
            await self._publisher.record(EventKind.MODEL_CHANGED, version or "none")
        else:
            detail = f"{version}: {change.action}: {change.reason}"
            await self._publisher.record(EventKind.MODEL_CHANGED, detail, change.actor)

    async def _loaded(self, version: str) -> Champion:
        """The version's bundle; one that can't be used is not tried again.

        Raises:
            ModelError: it could not be loaded.
        """
        try:
            bundle = await self._registry.call(lambda registry: _load(registry, version))
        except RegistryUnavailable:
            raise
        except ModelError:
            self._refused.add(version)
            raise
        return Champion(version, bundle)

    def _failed(self, problem: str) -> None:
        """Count each failure, log each problem once, and tell why there is no champion."""
        self._metrics.champion_failures.inc()
        serving = self._forecaster.serving_version
        if serving is None:
            self._forecaster.swap(f"no champion: {problem}")
        if problem != self._last_problem:
            log.warning("the champion can't be loaded", error=problem, serving=serving)
        self._last_problem = problem
