"""Between protobuf messages and the plugin's own records."""

import math
from collections import Counter
from dataclasses import dataclass

from dataplane.breaker import BreakerState
from dataplane.errors import SnapshotError
from dataplane.labels import CLASS_NAME
from dataplane.rules import ClassRule
from dataplane.state import EngineState, StepTimeSums
from dataplane.weights import ClassPolicy, Discipline, LatePolicy, Slo, Tier, WeightTable
from protos.trimtab.v1 import weights_pb2 as pb

MAX_CLASSES = 256
"""Each class costs a queue, two dozen metric series and a share of every dispatch."""

MAX_RULES = 256

_DISCIPLINES = {
    pb.DISCIPLINE_APQ: Discipline.APQ,
    pb.DISCIPLINE_FCFS: Discipline.FCFS,
    pb.DISCIPLINE_GCMU: Discipline.GCMU,
    pb.DISCIPLINE_WFQ: Discipline.WFQ,
    pb.DISCIPLINE_EDF: Discipline.EDF,
    pb.DISCIPLINE_STRICT: Discipline.STRICT,
    pb.DISCIPLINE_CP_SCORE: Discipline.CP_SCORE,
}
_LATE_POLICIES = {
    pb.LATE_POLICY_SERVE: LatePolicy.SERVE,
    pb.LATE_POLICY_DEMOTE: LatePolicy.DEMOTE,
}
_TIERS = {
    pb.TIER_UNSPECIFIED: Tier.P1,
    pb.TIER_P0: Tier.P0,
    pb.TIER_P1: Tier.P1,
    pb.TIER_P2: Tier.P2,
}
_BREAKER = {
    BreakerState.CLOSED: pb.BREAKER_CLOSED,
    BreakerState.DEGRADED: pb.BREAKER_DEGRADED,
    BreakerState.OPEN: pb.BREAKER_OPEN,
    BreakerState.HALF_OPEN: pb.BREAKER_HALF_OPEN,
}


Judged = tuple[str, int, int]
"""A class, how many of its requests were judged, and how many of these were violated."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who says hello."""

    engine_id: str
    plugin_version: str
    engine_version: str


def decode_snapshot(snapshot: pb.Snapshot, received_at_s: float) -> WeightTable:
    """Check a snapshot and make it a table.

    Args:
        snapshot: as received.
        received_at_s: now, on the engine's monotonic clock.

    Raises:
        SnapshotError: it breaks the protocol; the text names the field.
    """
    _require(snapshot.version > 0, "version must be at least 1")
    _require(
        math.isfinite(snapshot.ttl_s) and snapshot.ttl_s > 0,
        f"ttl_s must be positive and finite, got {snapshot.ttl_s}",
    )
    _require(
        snapshot.discipline in _DISCIPLINES,
        f"discipline {snapshot.discipline} is none that this engine knows",
    )
    _require(snapshot.mode != pb.MODE_UNSPECIFIED, "mode is not specified")
    policies = _policies(snapshot)
    return WeightTable(
        epoch=snapshot.epoch,
        version=snapshot.version,
        ttl_s=snapshot.ttl_s,
        mode=_mode_name(snapshot.mode),
        discipline=_DISCIPLINES[snapshot.discipline],
        policies=policies,
        rules=_rules(snapshot, policies),
        received_at_s=received_at_s,
    )


def hello(identity: Identity, table: WeightTable) -> pb.EngineMessage:
    """The first message of a stream."""
    return pb.EngineMessage(
        hello=pb.Hello(
            engine_id=identity.engine_id,
            plugin_version=identity.plugin_version,
            engine_version=identity.engine_version,
            applied_version=table.version,
            applied_epoch=table.epoch,
        )
    )


def ack(push: pb.Push) -> pb.EngineMessage:
    """The pushed snapshot is in force."""
    snapshot = push.snapshot
    return pb.EngineMessage(
        ack=pb.Ack(nonce=push.nonce, version=snapshot.version, epoch=snapshot.epoch)
    )


def nack(push: pb.Push, reason: str) -> pb.EngineMessage:
    """The pushed snapshot changes nothing, for this reason."""
    snapshot = push.snapshot
    return pb.EngineMessage(
        nack=pb.Nack(
            nonce=push.nonce, version=snapshot.version, epoch=snapshot.epoch, reason=reason
        )
    )


def report(
    state: EngineState, table: WeightTable, now_s: float, told: frozenset[Judged] = frozenset()
) -> pb.EngineMessage:
    """What the engine sees of itself; counts that the stream was told go without saying."""
    return pb.EngineMessage(
        report=pb.Report(
            applied_version=table.version,
            applied_epoch=table.epoch,
            neutral=table.neutral,
            snapshot_age_s=table.age_s(now_s),
            kv_usage_ratio=state.kv_usage_ratio,
            queues=[
                pb.ClassQueueDepth(
                    task_class=queue.task_class,
                    waiting=queue.waiting,
                    running=queue.running,
                    oldest_wait_s=queue.oldest_wait_s(now_s),
                )
                for queue in state.classes
            ],
            step_time=_step_time(state.step_time),
            breaker=_BREAKER[state.breaker],
            preemptions=state.preemptions,
            recomputed_tokens=state.recomputed_tokens,
            counts=[
                pb.ClassCounts(task_class=name, judged=judged, violated=violated)
                for name, judged, violated in sorted(counts_of(state) - told)
            ],
        )
    )


def counts_of(state: EngineState) -> frozenset[Judged]:
    """What became of the requests of each class of which any counts."""
    return frozenset(
        (one.task_class, one.judged, one.violated) for one in state.classes if one.judged
    )


def _step_time(sums: StepTimeSums | None) -> pb.StepTimeStats | None:
    if sums is None:
        return None
    return pb.StepTimeStats(
        steps=sums.steps, elapsed_s=sums.elapsed_s, gram=sums.gram, moment=sums.moment
    )


def _policies(snapshot: pb.Snapshot) -> dict[str, ClassPolicy]:
    _require(
        len(snapshot.classes) <= MAX_CLASSES,
        f"{len(snapshot.classes)} classes, more than {MAX_CLASSES}",
    )
    counts = Counter(entry.task_class for entry in snapshot.classes)
    for name, count in counts.items():
        _require(count == 1, f"class {name[:80]!r} is there {count} times")
    return {entry.task_class: _policy(entry) for entry in snapshot.classes}


def _policy(entry: pb.ClassPolicy) -> ClassPolicy:
    where = f"class {entry.task_class[:80]!r}"
    _require(
        CLASS_NAME.fullmatch(entry.task_class) is not None,
        f"{where}: a name is 1 to 64 of [A-Za-z0-9_.-]",
    )
    _require(entry.late in _LATE_POLICIES, f"{where}: late policy {entry.late} is none we know")
    _require(entry.tier in _TIERS, f"{where}: tier {entry.tier} is none we know")
    try:
        return ClassPolicy(
            task_class=entry.task_class,
            weight=entry.weight,
            default_weight=entry.default_weight,
            slo=_slo(entry.slo),
            value=entry.value,
            late=_LATE_POLICIES[entry.late],
            max_wait_s=entry.max_wait_s if entry.HasField("max_wait_s") else None,
            tier=_TIERS[entry.tier],
        )
    except ValueError as error:
        raise SnapshotError(f"{where}: {error}") from error


def _slo(slo: pb.Slo) -> Slo:
    """Raises ValueError for what is no finite, positive time."""
    decoded = Slo(
        ttft_s=slo.ttft_s,
        tpot_s=slo.tpot_s if slo.HasField("tpot_s") else None,
        e2e_s=slo.e2e_s if slo.HasField("e2e_s") else None,
    )
    if not all(math.isfinite(s) for s in (slo.ttft_s, slo.tpot_s, slo.e2e_s)):
        raise ValueError("an objective must be finite; leave it out to have none")
    return decoded


def _rules(snapshot: pb.Snapshot, policies: dict[str, ClassPolicy]) -> tuple[ClassRule, ...]:
    _require(len(snapshot.rules) <= MAX_RULES, f"{len(snapshot.rules)} rules, over {MAX_RULES}")
    for rule in snapshot.rules:
        _require(
            rule.task_class in policies,
            f"a rule names class {rule.task_class[:80]!r}, which the snapshot lacks",
        )
    return tuple(
        ClassRule(**{field.name: value for field, value in rule.ListFields()})
        for rule in snapshot.rules
    )


def _mode_name(mode: int) -> str:
    """A mode steers nothing here, so one from a newer control plane is only a number."""
    known = pb.Mode.DESCRIPTOR.values_by_number.get(mode)
    return str(mode) if known is None else known.name.removeprefix("MODE_").lower()


def _require(condition: bool, complaint: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise SnapshotError(complaint)
