"""The only place where the control plane reads or waits for time.

Deadlines are absolute: tick n is due at start + n * tick_s, so a late tick
delays none of those after it, and an overrun skips ticks instead of bunching.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from typing import Protocol

MIN_TICK_S = 1.0
"""No configuration ticks faster, so nothing is published more often for long."""


class Clock(Protocol):
    """Monotonic time to measure with, Unix time to name instants with."""

    def now_s(self) -> float:
        """Seconds on a clock that never steps."""

    def unix_s(self) -> float:
        """Seconds since 1970 UTC; may step."""

    async def sleep_until(self, deadline_s: float) -> None:
        """Wait until ``now_s() >= deadline_s``; yields even when that is past."""


class SystemClock:
    """The machine's clocks."""

    def now_s(self) -> float:
        """Seconds on the monotonic clock."""
        return time.monotonic()

    def unix_s(self) -> float:
        """Seconds since 1970 UTC."""
        return time.time()

    async def sleep_until(self, deadline_s: float) -> None:
        """Wait on the event loop."""
        await asyncio.sleep(max(0.0, deadline_s - time.monotonic()))


async def ticks(clock: Clock, tick_s: float) -> AsyncIterator[int]:
    """Yield the number of each tick when it is due; number 0 is due at once."""
    start_s = clock.now_s()
    number = 0
    while True:
        await clock.sleep_until(start_s + number * tick_s)
        yield number
        elapsed_s = clock.now_s() - start_s
        number = max(number + 1, math.ceil(elapsed_s / tick_s))
