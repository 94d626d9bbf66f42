"""Whose turn it is on which engines, and what a turn that is over has lost."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from controlplane.canary.blocks import Arm, Moment, Timetable, choose_engines
from controlplane.canary.counts import BlockCounts, block_loss
from controlplane.status import ClassCounts, EngineStatus

Identity = tuple[int, int]
"""Epoch and version of a snapshot."""


@dataclass(frozen=True, slots=True)
class EndedBlock:
    """A block that is over.

    Attributes:
        loss: in [0, 1]; None: it tells nothing.
    """

    moment: Moment
    loss: float | None


@dataclass(frozen=True, slots=True)
class Turn:
    """What a tick does.

    Attributes:
        canaries: the engines that take part; the same in both blocks of a pair.
        ended: the block before, in the first tick of a block.
    """

    arm: Arm
    canaries: frozenset[str]
    ended: EndedBlock | None


@dataclass(slots=True)
class _Block:
    """The block under way.

    Attributes:
        since: the newest snapshot before it; what came later is of its arm.
        before: the canaries after its wash-out; None: not all of them have got there.
    """

    moment: Moment
    canaries: frozenset[str]
    since: Identity
    before: Mapping[str, EngineStatus] | None = None
    disturbed: bool = False


class Turns:
    """Follows canaries through the blocks of a timetable.

    A block tells something when all its canaries, each on one stream all along, reported after
    the wash-out and at the end that they ran what its arm had sent, and nothing disturbed it.

    Args:
        ratio: of the connected engines that are to be canaries.
        values: worth of a request, by class.
    """

    def __init__(self, timetable: Timetable, *, ratio: float, values: Mapping[str, float]) -> None:
        self._timetable = timetable
        self._ratio = ratio
        self._values = values
        self._block: _Block | None = None

    def tick(self, now_s: float, engines: Sequence[EngineStatus], newest: Identity) -> Turn:
        """The turn of a tick, before which ``newest`` was the last snapshot sent to anybody."""
        moment, block, ended = self._timetable.at(now_s), self._block, None
        if block is None or moment.block != block.moment.block:
            if block is not None:
                ended = EndedBlock(block.moment, self._loss(block, engines))
            block = self._block = self._opened(moment, engines, newest)
        if moment.counts and block.before is None:
            block.before = _running(block, engines)
        return Turn(moment.arm, block.canaries, ended)

    def disturb(self) -> None:
        """The block under way tells nothing: its arm did not steer its canaries all along."""
        if self._block is not None:
            self._block.disturbed = True

    def _opened(self, moment: Moment, engines: Sequence[EngineStatus], newest: Identity) -> _Block:
        last = self._block
        if last is not None and last.moment.pair == moment.pair:
            return _Block(moment, last.canaries, newest)
        connected = [engine.engine_id for engine in engines]
        seed = self._timetable.seed
        return _Block(moment, choose_engines(connected, ratio=self._ratio, seed=seed), newest)

    def _loss(self, block: _Block, engines: Sequence[EngineStatus]) -> float | None:
        after = _running(block, engines)
        if block.disturbed or block.before is None or after is None:
            return None
        pairs = [(block.before[engine_id], after[engine_id]) for engine_id in after]
        if any(before.stream != later.stream for before, later in pairs):
            return None
        return block_loss((one for pair in pairs for one in _counts(*pair)), self._values)


def _running(block: _Block, engines: Sequence[EngineStatus]) -> Mapping[str, EngineStatus] | None:
    """The canaries, by name, if all of them run what was sent in the block."""
    running = {
        engine.engine_id: engine
        for engine in engines
        if engine.engine_id in block.canaries and _applied_after(engine, block.since)
    }
    return running if running and len(running) == len(block.canaries) else None


def _applied_after(engine: EngineStatus, since: Identity) -> bool:
    report, (epoch, version) = engine.last_report, since
    return (
        report is not None
        and not report.neutral
        and report.applied_epoch == epoch
        and report.applied_version > version
    )


def _counts(before: EngineStatus, after: EngineStatus) -> Iterator[BlockCounts]:
    """Of each class, on one engine."""
    earlier = {one.task_class: one for one in _reported(before)}
    for one in _reported(after):
        first = earlier.get(one.task_class, ClassCounts(one.task_class, 0, 0))
        yield BlockCounts(one.task_class, first.judged, one.judged, first.violated, one.violated)


def _reported(engine: EngineStatus) -> tuple[ClassCounts, ...]:
    return () if engine.last_report is None else engine.last_report.counts
