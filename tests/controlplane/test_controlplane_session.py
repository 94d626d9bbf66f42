from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.session import Answer, Session, nonce_of
from controlplane.snapshot import Discipline, Mode, Snapshot
from controlplane.status import ClassCounts, Report

SNAPSHOT = Snapshot(1, 7, 0.0, 30.0, Mode.RULE, "", Discipline.APQ, ())


def _version(version: int, epoch: int = 7) -> Snapshot:
    return replace(SNAPSHOT, version=version, epoch=epoch)


@pytest.fixture
def session() -> Session:
    return Session("engine-1", "0.32", answer_timeout_s=10.0)


def test_nothing_published_nothing_wanted(session: Session) -> None:
    assert not session.wants(None, 0.0)


def test_one_push_in_flight_then_the_newest(session: Session) -> None:
    nonce = session.pushed(_version(1), 0.0)
    assert not session.wants(_version(1), 1.0)
    assert not session.wants(_version(2), 1.0)
    assert session.acked(nonce) is Answer.ACK
    assert session.acked_version == 1
    assert not session.wants(_version(1), 1.0)
    assert session.wants(_version(5), 1.0)


def test_refused_snapshot_is_parked_until_a_newer_one(session: Session) -> None:
    nonce = session.pushed(_version(1), 0.0)
    assert session.nacked(nonce, "weight of vip is 0") is Answer.NACK
    assert session.status.last_nack_reason == "weight of vip is 0"
    assert not session.wants(_version(1), 100.0)
    assert session.wants(_version(2), 0.0)
    session.acked(session.pushed(_version(2), 0.0))
    assert session.status.last_nack_reason is None


def test_answer_with_another_nonce_is_ignored(session: Session) -> None:
    first = session.pushed(_version(1), 0.0)
    assert session.wants(_version(2), 10.0)
    second = session.pushed(_version(2), 10.0)  # the first was never answered
    assert session.acked(first) is Answer.STALE
    assert session.nacked("nonsense", "") is Answer.STALE
    assert session.acked_version == 0
    assert session.acked(second) is Answer.ACK
    assert session.acked(second) is Answer.STALE  # said twice


def test_newer_epoch_wins_over_a_higher_version(session: Session) -> None:
    session.acked(session.pushed(_version(9, epoch=7), 0.0))
    assert session.wants(_version(1, epoch=8), 0.0)
    assert not session.wants(_version(10, epoch=6), 0.0)


@given(st.lists(st.sampled_from(["publish", "ack", "nack", "stale", "wait"]), max_size=60))
def test_whatever_an_engine_answers_the_newest_gets_through(actions: list[str]) -> None:
    session = Session("engine-1", "", answer_timeout_s=10.0)
    now_s, version, pushes, nonce = 0.0, 1, [], ""
    for action in actions:
        if session.wants(_version(version), now_s):
            nonce = session.pushed(_version(version), now_s)
            pushes.append(version)
        match action:
            case "publish":
                version += 1
            case "ack":
                session.acked(nonce)
            case "nack":
                session.nacked(nonce, "no")
            case "stale":
                session.acked(nonce_of(_version(version + 1000)))
            case _:
                now_s += 4.0
    assert pushes == sorted(set(pushes))  # none twice, none backwards
    now_s += 10.0
    version += 1
    assert session.wants(_version(version), now_s)


def test_counts_that_a_report_does_not_name_have_not_changed(session: Session) -> None:
    vip, batch = ClassCounts("vip", 5, 1), ClassCounts("batch", 3, 0)
    first = Report(1, 7, neutral=False, kv_usage_ratio=0.5, counts=(vip, batch))
    session.reported(first)
    grown = ClassCounts("vip", 8, 2)
    session.reported(replace(first, kv_usage_ratio=0.6, counts=(grown,)))
    assert session.last_report == replace(first, kv_usage_ratio=0.6, counts=(grown, batch))
