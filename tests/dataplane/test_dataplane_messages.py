import math

import pytest
from loopback_control_plane import class_policy, snapshot

from dataplane.errors import SnapshotError
from dataplane.rules import ClassRule
from dataplane.state import ClassState, EngineState, StepTimeSums
from dataplane.subscriber.messages import counts_of, decode_snapshot, report
from dataplane.weights import Discipline, LatePolicy, Slo, WeightTable
from protos.trimtab.v1 import weights_pb2 as pb


def test_a_snapshot_becomes_a_table() -> None:
    table = decode_snapshot(
        snapshot(
            version=7,
            epoch=3,
            classes=[
                class_policy("vip", weight=9.0, late=pb.LATE_POLICY_DEMOTE, max_wait_s=30.0),
                class_policy("chat", slo=pb.Slo(ttft_s=2.0, tpot_s=0.1, e2e_s=20.0)),
            ],
            rules=[pb.ClassRule(task_class="vip", max_prompt_tokens=64)],
        ),
        received_at_s=12.0,
    )
    assert (table.epoch, table.version, table.ttl_s, table.mode) == (3, 7, 60.0, "rule")
    assert table.discipline is Discipline.APQ
    assert table.received_at_s == 12.0
    assert table.rules == (ClassRule("vip", max_prompt_tokens=64),)
    vip = table.policies["vip"]
    assert (vip.weight, vip.default_weight, vip.late) == (9.0, 1.0, LatePolicy.DEMOTE)
    assert (vip.slo, vip.max_wait_s) == (Slo(ttft_s=1.0), 30.0)
    assert table.policies["chat"].slo == Slo(ttft_s=2.0, tpot_s=0.1, e2e_s=20.0)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (pb.Snapshot(), "version must be at least 1"),
        (snapshot(version=0), "version must be at least 1"),
        (snapshot(ttl_s=-1.0), "ttl_s must be positive"),
        (snapshot(ttl_s=math.inf), "ttl_s must be positive and finite"),
        (snapshot(ttl_s=math.nan), "ttl_s must be positive and finite"),
        (pb.Snapshot(version=1, ttl_s=1.0, mode=pb.MODE_RULE), "discipline 0"),
        (snapshot(discipline=99), "discipline 99"),
        (pb.Snapshot(version=1, ttl_s=1.0, discipline=pb.DISCIPLINE_APQ), "mode is not"),
        (snapshot(classes=[class_policy(weight=-1.0)]), "'chat': weight must be positive"),
        (snapshot(classes=[class_policy(weight=math.nan)]), "'chat': weight must be positive"),
        (snapshot(classes=[class_policy(default_weight=math.inf)]), "default_weight must be"),
        (snapshot(classes=[pb.ClassPolicy(task_class="x")]), "'x': late policy 0"),
        (snapshot(classes=[class_policy(late=9)]), "late policy 9"),
        (snapshot(classes=[class_policy(slo=pb.Slo(ttft_s=-1.0))]), "ttft_s must be a positive"),
        (snapshot(classes=[class_policy(slo=pb.Slo(ttft_s=math.inf))]), "must be finite"),
        (snapshot(classes=[class_policy(slo=pb.Slo(e2e_s=math.inf))]), "must be finite"),
        (snapshot(classes=[class_policy(slo=pb.Slo(tpot_s=0.0))]), "tpot_s must be a positive"),
        (snapshot(classes=[class_policy(max_wait_s=0.0)]), "max_wait_s must be positive"),
        (snapshot(classes=[class_policy("no space")]), "'no space': a name is"),
        (snapshot(classes=[class_policy("x" * 65)]), "a name is 1 to 64"),
        (snapshot(classes=[class_policy(), class_policy()]), "'chat' is there 2 times"),
        (snapshot(classes=[class_policy(f"c{i}") for i in range(257)]), "257 classes"),
        (snapshot(rules=[pb.ClassRule(task_class="gone")]), "a rule names class 'gone'"),
        (snapshot(rules=[pb.ClassRule(task_class="chat")] * 257), "257 rules"),
    ],
)
def test_a_broken_snapshot_is_refused_with_a_reason(message: pb.Snapshot, reason: str) -> None:
    with pytest.raises(SnapshotError, match=reason):
        decode_snapshot(message, received_at_s=0.0)


def test_a_name_of_any_length_makes_a_short_reason() -> None:
    with pytest.raises(SnapshotError) as refusal:
        decode_snapshot(snapshot(classes=[class_policy("x" * 1_000_000)]), received_at_s=0.0)
    assert len(str(refusal.value)) < 200


def test_a_mode_from_a_newer_control_plane_is_no_reason_to_refuse() -> None:
    assert decode_snapshot(snapshot(mode=42), received_at_s=0.0).mode == "42"


def test_a_report_says_what_is_in_force_and_what_waits() -> None:
    table = decode_snapshot(snapshot(version=5, epoch=2), received_at_s=10.0).neutralised()
    state = EngineState(
        kv_usage_ratio=0.25,
        classes=(ClassState("chat", 3, 2, 1, 11.0), ClassState("idle", 0, 0, 0, None)),
    )
    body = report(state, table, now_s=14.0).report
    assert (body.applied_version, body.applied_epoch, body.neutral) == (5, 2, True)
    assert (body.snapshot_age_s, body.kv_usage_ratio) == (4.0, 0.25)
    assert [(q.task_class, q.waiting, q.running, q.oldest_wait_s) for q in body.queues] == [
        ("chat", 3, 2, 3.0),
        ("idle", 0, 0, 0.0),
    ]


def test_before_the_first_snapshot_a_report_has_no_age() -> None:
    assert not report(EngineState(), WeightTable.initial(), 5.0).report.HasField("snapshot_age_s")


def test_a_report_carries_the_sums_of_the_steps_once_there_are_some() -> None:
    sums = StepTimeSums(7, 0.35, tuple(map(float, range(10))), (1.0, 2.0, 3.0, 4.0))
    table = WeightTable.initial()
    sent = report(EngineState(step_time=sums), table, 0.0).report.step_time
    assert (sent.steps, sent.elapsed_s) == (7, 0.35)
    assert (tuple(sent.gram), tuple(sent.moment)) == (sums.gram, sums.moment)
    assert not report(EngineState(), table, 0.0).report.HasField("step_time")


def test_a_report_names_the_counts_that_the_stream_was_not_told_yet() -> None:
    def state(chat: int, batch: int) -> EngineState:
        idle = ClassState("idle", 0, 0, 0, None)
        return EngineState(
            classes=(
                ClassState("chat", 0, 0, 0, None, judged=chat, violated=2),
                ClassState("batch", 0, 0, 0, None, judged=batch, violated=1),
                idle,
            )
        )

    def counts(now: EngineState, told: EngineState) -> list[tuple[str, int, int]]:
        body = report(now, WeightTable.initial(), 0.0, counts_of(told)).report
        return [(one.task_class, one.judged, one.violated) for one in body.counts]

    assert counts(state(7, 3), EngineState()) == [("batch", 3, 1), ("chat", 7, 2)]
    assert counts(state(9, 3), state(7, 3)) == [("chat", 9, 2)]
    assert counts(state(9, 3), state(9, 3)) == []
