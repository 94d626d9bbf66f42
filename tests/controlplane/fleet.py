"""A control loop and its engines, tick by tick: control plane time is virtual, streams are real."""

import asyncio
from collections.abc import Callable

import numpy as np
from door import Door
from stream_engine import StreamEngine
from virtual_clock import VirtualClock

from controlplane.errors import PrometheusUnreachable
from controlplane.hotswap import ChampionWatch
from controlplane.loop import ControlLoop
from controlplane.store.sqlite import SqliteStore
from controlplane.trials import Trials
from models.window import STEP_S, STEPS, Signal, Window

TICK_S = 1.0
PATIENCE_S = 60.0


class Fleet:
    """What a test drives.

    Attributes:
        blind: no window comes.
    """

    def __init__(
        self,
        *,
        door: Door,
        clock: VirtualClock,
        watch: ChampionWatch,
        trials: Trials,
        store: SqliteStore,
        new_loop: Callable[["Fleet"], ControlLoop],
        engines: list[StreamEngine],
    ) -> None:
        self.door = door
        self.clock = clock
        self.trials = trials
        self.store = store
        self.engines = engines
        self.blind = False
        self._watch = watch
        self._loop = new_loop(self)

    def fetch(self, end_unix_s: float) -> Window:
        if self.blind:
            raise PrometheusUnreachable("timed out")
        signals = {signal: np.ones((2, STEPS)) for signal in Signal}
        return Window(end_unix_s, STEP_S, ("vip", "batch"), signals)

    async def ticks(self, count: int) -> None:
        for _ in range(count):
            await self.tick()

    async def tick(self) -> None:
        """One tick; then all engines run what is for them, serve, and have reported."""
        await self._watch.poll()
        await self.trials.poll()
        await self._loop.tick()
        self.clock.elapsed_s += TICK_S
        await self.settled()

    async def until_over(self, ticks: int = 400) -> int:
        """Tick until no contest is under way and nothing is left to do; pairs that it took."""
        for _ in range(ticks):
            await self.tick()
            record = self.store.trial()
            if record is not None and record.settled:
                return len(record.differences)
        raise AssertionError(f"it goes on: {self.trials.status}")

    async def pairs(self, count: int) -> None:
        """Tick until so many have told something, and a block has begun after them."""
        while self.metric("canary_pairs") < count:
            await self.tick()

    def metric(self, name: str, **labels: str) -> float:
        value = self.door.metrics.registry.get_sample_value(f"trimtab_controlplane_{name}", labels)
        assert value is not None, name
        return value

    def replace_trials(self, trials: Trials) -> None:
        """As after a restart of the control plane."""
        self.trials = self._loop._trials = trials

    async def settled(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await _until(lambda: all(map(self._runs_its_own, self.engines)))
            for engine in self.engines:
                await engine.serve()
            await _until(lambda: all(map(self._was_heard, self.engines)))

    def close(self) -> None:
        self._loop.close()

    def _runs_its_own(self, engine: StreamEngine) -> bool:
        wanted = self.door.broadcast.latest_for(engine.engine_id)
        return (
            wanted is not None
            and engine.snapshot is not None
            and engine.snapshot.version == wanted.version
            and any(known.engine_id == engine.engine_id for known in self.door.push.engines)
        )

    def _was_heard(self, engine: StreamEngine) -> bool:
        for known in self.door.push.engines:
            if known.engine_id == engine.engine_id and known.last_report is not None:
                heard = sum(one.judged for one in known.last_report.counts)
                return heard == engine.judged
        return False


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what the server does sets no event here
        await asyncio.sleep(0.001)
