"""The control plane's side of one engine stream, without the stream. Pure.

The rules are those at the top of weights.proto. In short: one push is in flight
at a time, so that a slow engine skips to the newest; an answer counts only with
the nonce of the last push; a refused snapshot is parked until a newer one.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from controlplane.snapshot import Snapshot
from controlplane.status import EngineStatus, Report


class Answer(StrEnum):
    """What became of an engine's answer."""

    ACK = "ack"
    NACK = "nack"
    STALE = "stale"
    """Its nonce is not that of the last push: ignored."""


@dataclass(slots=True)
class Session:
    """State of one stream.

    Attributes:
        acked_version: newest that the engine took; 0: none on this stream.
        parked_reason: why the engine refused the last push; None: it did not.
        last_report: with the counts of all classes so far; None before the first.
    """

    engine_id: str
    engine_version: str
    answer_timeout_s: float
    stream: int = 0
    acked_version: int = 0
    parked_reason: str | None = None
    last_report: Report | None = None
    _sent: Snapshot | None = field(default=None, init=False)
    _unanswered_since_s: float | None = field(default=None, init=False)

    @property
    def status(self) -> EngineStatus:
        """What is known of the engine."""
        return EngineStatus(
            self.engine_id,
            self.engine_version,
            self.acked_version,
            self.parked_reason,
            self.last_report,
            self.stream,
        )

    def reported(self, report: Report) -> None:
        """Take a report, which names only counts that changed."""
        counts = {one.task_class: one for one in (self.last_report or report).counts}
        counts |= {one.task_class: one for one in report.counts}
        self.last_report = replace(report, counts=tuple(counts.values()))

    def wants(self, latest: Snapshot | None, now_s: float) -> bool:
        """Whether ``latest`` should be pushed now."""
        if latest is None or not _newer(latest, self._sent):
            return False
        return self.patience_s(now_s) == 0

    def patience_s(self, now_s: float) -> float:
        """How long the answer in flight may still take; 0: none is awaited any more."""
        if self._unanswered_since_s is None:
            return 0.0
        return max(0.0, self._unanswered_since_s + self.answer_timeout_s - now_s)

    def pushed(self, snapshot: Snapshot, now_s: float) -> str:
        """``snapshot`` goes out; returns its nonce, the same on every stream."""
        self._sent = snapshot
        self._unanswered_since_s = now_s
        return nonce_of(snapshot)

    def acked(self, nonce: str) -> Answer:
        """The engine runs the snapshot."""
        answered = self._answered(nonce)
        if answered is None:
            return Answer.STALE
        self.acked_version = answered.version
        self.parked_reason = None
        return Answer.ACK

    def nacked(self, nonce: str, reason: str) -> Answer:
        """The engine refuses the snapshot."""
        if self._answered(nonce) is None:
            return Answer.STALE
        self.parked_reason = reason
        return Answer.NACK

    def _answered(self, nonce: str) -> Snapshot | None:
        """The push in flight, if ``nonce`` is its; it is then no longer in flight."""
        in_flight = self._sent if self._unanswered_since_s is not None else None
        if in_flight is None or nonce != nonce_of(in_flight):
            return None
        self._unanswered_since_s = None
        return in_flight


def nonce_of(snapshot: Snapshot) -> str:
    """Names one push of a stream: a stream never carries a snapshot twice."""
    return f"{snapshot.epoch}-{snapshot.version}"


def _newer(snapshot: Snapshot, than: Snapshot | None) -> bool:
    return than is None or (snapshot.epoch, snapshot.version) > (than.epoch, than.version)
