"""The clock inside the engine: the only place that reads time."""

import time


class Clock:
    """Real time."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never steps; comparable within this process only."""
        return time.monotonic()

    def wall_s(self) -> float:
        """Seconds since the Unix epoch; comparable with other processes, but it may step."""
        return time.time()
