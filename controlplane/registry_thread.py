"""The model registry, from the event loop: one thread of its own for all that touches it."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # importing the registry imports MLflow, which takes seconds
    from collections.abc import Callable

    from models.registry import Registry

T = TypeVar("T")


class RegistryThread:
    """Calls the registry one at a time; opened when first used.

    Args:
        open_registry: blocking; called until it succeeds once.
    """

    def __init__(self, open_registry: Callable[[], Registry]) -> None:
        self._open_registry = open_registry
        self._registry: Registry | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="registry")
        self._calls: set[Future[Any]] = set()

    async def call(self, ask: Callable[[Registry], T]) -> T:
        """What ``ask`` makes of the registry, in the thread; raises what it raises."""
        running = self._thread.submit(self._asked, ask)
        self._calls.add(running)
        running.add_done_callback(self._calls.discard)
        return await asyncio.wrap_future(running)

    async def close(self, grace_s: float) -> None:
        """Give the call in flight so long to end, for it may be writing, then let it go."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(wait, list(self._calls), grace_s)

    def _asked(self, ask: Callable[[Registry], T]) -> T:
        if self._registry is None:
            self._registry = self._open_registry()
        return ask(self._registry)
