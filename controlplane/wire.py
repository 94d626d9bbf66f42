"""Domain records to protobuf messages and back.

With `push`, `admin` and `client`, the only place that sees generated messages.
"""

from dataclasses import asdict

from controlplane import snapshot as domain
from controlplane import status
from controlplane.snapshot import Discipline, Mode
from models.classes import LatePolicy, Slo, TaskClass, Tier
from protos.trimtab.v1 import admin_pb2, weights_pb2

_MODES = {
    Mode.LEARNED: weights_pb2.MODE_LEARNED,
    Mode.RULE: weights_pb2.MODE_RULE,
    Mode.HOLD: weights_pb2.MODE_HOLD,
    Mode.STATIC: weights_pb2.MODE_STATIC,
}
_DISCIPLINES = {
    Discipline.APQ: weights_pb2.DISCIPLINE_APQ,
    Discipline.FCFS: weights_pb2.DISCIPLINE_FCFS,
    Discipline.GCMU: weights_pb2.DISCIPLINE_GCMU,
    Discipline.WFQ: weights_pb2.DISCIPLINE_WFQ,
    Discipline.EDF: weights_pb2.DISCIPLINE_EDF,
    Discipline.STRICT: weights_pb2.DISCIPLINE_STRICT,
    Discipline.CP_SCORE: weights_pb2.DISCIPLINE_CP_SCORE,
}
_LATE = {
    LatePolicy.SERVE: weights_pb2.LATE_POLICY_SERVE,
    LatePolicy.DEMOTE: weights_pb2.LATE_POLICY_DEMOTE,
}
_TIERS = {
    Tier.P0: weights_pb2.TIER_P0,
    Tier.P1: weights_pb2.TIER_P1,
    Tier.P2: weights_pb2.TIER_P2,
}
_BREAKER = {
    status.BreakerState.CLOSED: weights_pb2.BREAKER_CLOSED,
    status.BreakerState.DEGRADED: weights_pb2.BREAKER_DEGRADED,
    status.BreakerState.OPEN: weights_pb2.BREAKER_OPEN,
    status.BreakerState.HALF_OPEN: weights_pb2.BREAKER_HALF_OPEN,
}
_BREAKER_BACK = {wire: state for state, wire in _BREAKER.items()}
_MODES_BACK = {wire: mode for mode, wire in _MODES.items()}
_DISCIPLINES_BACK = {wire: discipline for discipline, wire in _DISCIPLINES.items()}
_LATE_BACK = {wire: late for late, wire in _LATE.items()}
_TIERS_BACK = {wire: tier for tier, wire in _TIERS.items()} | {
    weights_pb2.TIER_UNSPECIFIED: Tier.P1
}


def snapshot_to_wire(snapshot: domain.Snapshot) -> weights_pb2.Snapshot:
    """What engines get."""
    return weights_pb2.Snapshot(
        version=snapshot.version,
        epoch=snapshot.epoch,
        issued_at_unix_s=snapshot.issued_at_unix_s,
        ttl_s=snapshot.ttl_s,
        mode=_MODES[snapshot.mode],
        mode_reason=snapshot.mode_reason,
        discipline=_DISCIPLINES[snapshot.discipline],
        classes=[_policy_to_wire(policy) for policy in snapshot.classes],
        rules=[weights_pb2.ClassRule(**asdict(rule)) for rule in snapshot.rules],
        model_version=snapshot.model_version or "",
    )


def snapshot_from_wire(message: weights_pb2.Snapshot) -> domain.Snapshot:
    """What a control plane of this version sent.

    Raises:
        KeyError: an enum holds a value that this version does not know.
        ValueError: a class is outside its ranges.
    """
    return domain.Snapshot(
        version=message.version,
        epoch=message.epoch,
        issued_at_unix_s=message.issued_at_unix_s,
        ttl_s=message.ttl_s,
        mode=_MODES_BACK[message.mode],
        mode_reason=message.mode_reason,
        discipline=_DISCIPLINES_BACK[message.discipline],
        classes=tuple(_policy_from_wire(policy) for policy in message.classes),
        rules=tuple(_rule_from_wire(rule) for rule in message.rules),
        model_version=message.model_version or None,
    )


def decision_to_wire(decision: domain.Decision) -> weights_pb2.Decision:
    """Why a snapshot's weights are what they are."""
    plan = decision.plan
    return weights_pb2.Decision(
        version=decision.version,
        epoch=decision.epoch,
        mode=_MODES[plan.mode],
        mode_reason=plan.mode_reason,
        model_version=plan.model_version or "",
        window_end_unix_s=plan.window_end_unix_s,
        classes=[
            weights_pb2.ClassDecision(
                task_class=one.task_class,
                weight=one.weight,
                rule_share=one.rule_share,
                residual=one.residual,
                features=[
                    weights_pb2.Feature(name=feature.name, value=feature.value)
                    for feature in one.features
                ],
                guardrails=one.guardrails,
                dither=one.dither,
            )
            for one in plan.classes
        ],
    )


def decision_from_wire(message: weights_pb2.Decision) -> domain.Decision:
    """The same, received.

    Raises:
        KeyError: an enum holds a value that this version does not know.
        ValueError: a weight is not positive and finite.
    """
    plan = domain.Plan(
        mode=_MODES_BACK[message.mode],
        mode_reason=message.mode_reason,
        classes=tuple(_class_from_wire(one) for one in message.classes),
        model_version=message.model_version or None,
        window_end_unix_s=(
            message.window_end_unix_s if message.HasField("window_end_unix_s") else None
        ),
    )
    return domain.Decision(message.version, message.epoch, plan)


def status_to_wire(current: status.Status) -> admin_pb2.Status:
    """What an operator sees."""
    return admin_pb2.Status(
        epoch=current.epoch,
        version=current.version,
        mode=_MODES[current.mode],
        mode_reason=current.mode_reason,
        discipline=_DISCIPLINES[current.discipline],
        model_version=current.model_version or "",
        missed_windows=current.missed_windows,
        retrain_reason=current.retrain_reason,
        canary=current.canary,
        engines=[
            admin_pb2.EngineStatus(
                engine_id=engine.engine_id,
                engine_version=engine.engine_version,
                acked_version=engine.acked_version,
                last_nack_reason=engine.last_nack_reason,
                last_report=_report_to_wire(engine.last_report),
                stream=engine.stream,
            )
            for engine in current.engines
        ],
    )


def status_from_wire(message: admin_pb2.Status) -> status.Status:
    """The same, received.

    Raises:
        KeyError: an enum holds a value that this version does not know.
    """
    return status.Status(
        epoch=message.epoch,
        version=message.version,
        mode=_MODES_BACK[message.mode],
        mode_reason=message.mode_reason,
        discipline=_DISCIPLINES_BACK[message.discipline],
        model_version=message.model_version or None,
        missed_windows=message.missed_windows,
        retrain_reason=message.retrain_reason if message.HasField("retrain_reason") else None,
        canary=message.canary if message.HasField("canary") else None,
        engines=tuple(_engine_from_wire(engine) for engine in message.engines),
    )


def report_from_wire(message: weights_pb2.Report) -> status.Report:
    """What an engine sees of itself."""
    return status.Report(
        applied_version=message.applied_version,
        applied_epoch=message.applied_epoch,
        neutral=message.neutral,
        kv_usage_ratio=message.kv_usage_ratio,
        snapshot_age_s=message.snapshot_age_s if message.HasField("snapshot_age_s") else None,
        queues=tuple(
            status.QueueDepth(depth.task_class, depth.waiting, depth.running, depth.oldest_wait_s)
            for depth in message.queues
        ),
        step_time=_step_time_from_wire(message.step_time),
        breaker=_BREAKER_BACK.get(message.breaker, status.BreakerState.CLOSED),
        preemptions=message.preemptions,
        recomputed_tokens=message.recomputed_tokens,
        counts=tuple(
            status.ClassCounts(one.task_class, one.judged, one.violated) for one in message.counts
        ),
    )


def discipline_to_wire(discipline: Discipline) -> "weights_pb2.Discipline.ValueType":
    """The enum's value."""
    return _DISCIPLINES[discipline]


def discipline_from_wire(value: "weights_pb2.Discipline.ValueType") -> Discipline | None:
    """None for one that this version does not know, UNSPECIFIED included."""
    return _DISCIPLINES_BACK.get(value)


def _policy_to_wire(policy: domain.ClassPolicy) -> weights_pb2.ClassPolicy:
    task_class = policy.task_class
    slo = task_class.slo
    return weights_pb2.ClassPolicy(
        task_class=task_class.name,
        weight=policy.weight,
        default_weight=policy.default_weight,
        slo=weights_pb2.Slo(ttft_s=slo.ttft_s, tpot_s=slo.tpot_s, e2e_s=slo.e2e_s),
        value=task_class.value,
        floor=task_class.floor,
        late=_LATE[task_class.late],
        max_wait_s=task_class.max_wait_s,
        tier=_TIERS[task_class.tier],
    )


def _policy_from_wire(message: weights_pb2.ClassPolicy) -> domain.ClassPolicy:
    slo = message.slo
    task_class = TaskClass(
        name=message.task_class,
        slo=Slo(
            slo.ttft_s,
            slo.tpot_s if slo.HasField("tpot_s") else None,
            slo.e2e_s if slo.HasField("e2e_s") else None,
        ),
        value=message.value,
        floor=message.floor,
        late=_LATE_BACK[message.late],
        max_wait_s=message.max_wait_s if message.HasField("max_wait_s") else None,
        tier=_TIERS_BACK[message.tier],
    )
    return domain.ClassPolicy(task_class, message.weight, message.default_weight)


def _rule_from_wire(message: weights_pb2.ClassRule) -> domain.ClassRule:
    present = {field.name: value for field, value in message.ListFields()}
    return domain.ClassRule(**{"task_class": "", **present})


def _class_from_wire(message: weights_pb2.ClassDecision) -> domain.ClassDecision:
    return domain.ClassDecision(
        task_class=message.task_class,
        weight=message.weight,
        rule_share=message.rule_share if message.HasField("rule_share") else None,
        residual=message.residual if message.HasField("residual") else None,
        features=tuple(
            domain.Feature(feature.name, feature.value if feature.HasField("value") else None)
            for feature in message.features
        ),
        guardrails=tuple(message.guardrails),
        dither=message.dither if message.HasField("dither") else None,
    )


def _report_to_wire(report: status.Report | None) -> weights_pb2.Report | None:
    if report is None:
        return None
    return weights_pb2.Report(
        applied_version=report.applied_version,
        applied_epoch=report.applied_epoch,
        neutral=report.neutral,
        kv_usage_ratio=report.kv_usage_ratio,
        snapshot_age_s=report.snapshot_age_s,
        queues=[
            weights_pb2.ClassQueueDepth(
                task_class=depth.task_class,
                waiting=depth.waiting,
                running=depth.running,
                oldest_wait_s=depth.oldest_wait_s,
            )
            for depth in report.queues
        ],
        step_time=_step_time_to_wire(report.step_time),
        breaker=_BREAKER[report.breaker],
        preemptions=report.preemptions,
        recomputed_tokens=report.recomputed_tokens,
        counts=[
            weights_pb2.ClassCounts(
                task_class=one.task_class, judged=one.judged, violated=one.violated
            )
            for one in report.counts
        ],
    )


def _step_time_to_wire(sums: status.StepTimeSums | None) -> weights_pb2.StepTimeStats | None:
    if sums is None:
        return None
    return weights_pb2.StepTimeStats(
        steps=sums.steps, elapsed_s=sums.elapsed_s, gram=sums.gram, moment=sums.moment
    )


def _step_time_from_wire(sums: weights_pb2.StepTimeStats) -> status.StepTimeSums | None:
    """None for absent sums, and for some of another shape: what they mean is unknown."""
    if (len(sums.gram), len(sums.moment)) != (10, 4):
        return None
    return status.StepTimeSums(sums.steps, sums.elapsed_s, tuple(sums.gram), tuple(sums.moment))


def _engine_from_wire(message: admin_pb2.EngineStatus) -> status.EngineStatus:
    return status.EngineStatus(
        engine_id=message.engine_id,
        engine_version=message.engine_version,
        acked_version=message.acked_version,
        last_nack_reason=(
            message.last_nack_reason if message.HasField("last_nack_reason") else None
        ),
        last_report=(
            report_from_wire(message.last_report) if message.HasField("last_report") else None
        ),
        stream=message.stream,
    )
