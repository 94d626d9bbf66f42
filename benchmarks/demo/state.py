"""What the demo knows while it runs; written by the run, read by the display."""

from dataclasses import dataclass, field

from benchmarks.client import Answer, Replay
from benchmarks.demo.scenario import CLASSES
from benchmarks.engine_metrics import EngineReading
from benchmarks.results import meets_slo
from controlplane.snapshot import Snapshot

_SLOS = {kind.name: kind.slo for kind in CLASSES}


@dataclass(slots=True)
class Tally:
    """Answers of one class under one policy so far."""

    answered: int = 0
    met: int = 0


@dataclass(frozen=True, slots=True)
class FinishedBlock:
    """One block that ran to its last answer."""

    policy: str
    pair: int
    replay: Replay
    preemptions: int | None
    recomputed_tokens: int | None


@dataclass(slots=True)
class DemoState:
    """The live part of the demo.

    Attributes:
        reading: the engine's last scrape that worked.
        snapshot: the control plane's last snapshot that we saw.
        control_plane_answers: whether the last call to it worked.
    """

    policy: str = ""
    expected: int = 0
    reading: EngineReading | None = None
    snapshot: Snapshot | None = None
    control_plane_answers: bool = False
    capacity_requests_per_s: float | None = None
    finished: list[FinishedBlock] = field(default_factory=list)
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)

    def count(self, answer: Answer) -> None:
        """Add one answer under the policy of the moment."""
        task_class = answer.arrival.task_class
        tally = self.tallies.setdefault((self.policy, task_class), Tally())
        tally.answered += 1
        tally.met += meets_slo(answer, _SLOS[task_class])

    @property
    def answered(self) -> int:
        """Answers so far, all policies and classes."""
        return sum(tally.answered for tally in self.tallies.values())

    @property
    def snapshots_applied(self) -> int | None:
        """By the engine since it started; None before it said so."""
        return None if self.reading is None else self.reading.snapshots_applied

    @property
    def model_version(self) -> str | None:
        """Of the last snapshot; None: there was no model."""
        return None if self.snapshot is None else self.snapshot.model_version
