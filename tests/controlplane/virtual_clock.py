"""A clock that jumps to each deadline at once, so that hours of ticks take no time."""

import asyncio


class VirtualClock:
    def __init__(self, unix_s: float = 1_700_000_000.0) -> None:
        self.elapsed_s = 0.0
        self._start_unix_s = unix_s

    def now_s(self) -> float:
        return self.elapsed_s

    def unix_s(self) -> float:
        return self._start_unix_s + self.elapsed_s

    async def sleep_until(self, deadline_s: float) -> None:
        self.elapsed_s = max(self.elapsed_s, deadline_s)
        await asyncio.sleep(0)
