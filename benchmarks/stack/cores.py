"""A core for the engine's worker alone, so that what we measure is the engine."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def core_for_engine() -> Iterator[int | None]:
    """Give up one core for the time being, and say which; None: there is none to spare.

    This process, and what it starts meanwhile, keeps to the other cores. vLLM binds
    its worker to the core by itself. Without that, the worker shares its core with
    vLLM's own engine-core process, which spins while it waits for the worker, and
    the engine's speed changes from minute to minute.
    """
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) == 1:
        yield None
        return
    ours = os.sched_getaffinity(0)
    core = min(ours)
    os.sched_setaffinity(0, ours - {core})
    try:
        yield core
    finally:
        os.sched_setaffinity(0, ours)
