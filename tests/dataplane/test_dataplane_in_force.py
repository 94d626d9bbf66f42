import pytest
from loopback_control_plane import class_policy, snapshot

from dataplane.errors import SnapshotError
from dataplane.subscriber import TableInForce
from dataplane.subscriber.messages import decode_snapshot
from dataplane.weights import WeightTable


def table(version: int, epoch: int = 1, weight: float = 4.0, at_s: float = 0.0) -> WeightTable:
    classes = [class_policy(weight=weight)]
    return decode_snapshot(snapshot(version, epoch, classes=classes), received_at_s=at_s)


def test_past_its_ttl_a_snapshot_turns_neutral_and_a_newer_one_ends_that() -> None:
    in_force = TableInForce()
    in_force.offer(table(1))
    assert in_force.at(60.0).policy("chat").weight == 4.0
    assert in_force.at(60.1).policy("chat").weight == 1.0
    assert in_force.at(60.1).neutral
    in_force.offer(table(2, at_s=70.0))
    assert in_force.at(70.0).policy("chat").weight == 4.0


def test_an_older_epoch_is_fenced_off_whatever_its_version() -> None:
    in_force = TableInForce()
    in_force.offer(table(3, epoch=2))
    with pytest.raises(SnapshotError, match="epoch 1 is over: this engine follows epoch 2"):
        in_force.offer(table(99, epoch=1))
    assert in_force.at(0.0).version == 3


def test_an_older_version_of_the_same_epoch_is_refused() -> None:
    in_force = TableInForce()
    in_force.offer(table(3))
    with pytest.raises(SnapshotError, match="version 2 is older than version 3"):
        in_force.offer(table(2))


def test_the_same_snapshot_again_changes_nothing_not_even_its_age() -> None:
    in_force = TableInForce()
    in_force.offer(table(3))
    in_force.offer(table(3, weight=9.0, at_s=50.0))
    assert in_force.at(55.0).policy("chat").weight == 4.0
    assert in_force.at(55.0).age_s(55.0) == 55.0
    assert in_force.applied == 1


def test_a_newer_epoch_may_count_versions_from_anywhere() -> None:
    in_force = TableInForce()
    in_force.offer(table(30, epoch=1))
    in_force.offer(table(1, epoch=2))
    assert (in_force.at(0.0).epoch, in_force.at(0.0).version) == (2, 1)
