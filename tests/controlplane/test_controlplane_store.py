import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from virtual_clock import VirtualClock

from controlplane.errors import StoreError
from controlplane.metrics import Metrics
from controlplane.publisher import Publisher
from controlplane.snapshot import ClassDecision, Decision, Discipline, Feature, Mode, Plan
from controlplane.store.sqlite import Event, EventKind, SqliteStore


def _plan(reason: str = "champion 3", mode: Mode = Mode.LEARNED) -> Plan:
    features = (Feature("demand", 0.25), Feature("latency", None))
    return Plan(
        mode,
        reason,
        (
            ClassDecision("vip", 0.7, 0.6, 0.1, features, ("step", "floor")),
            ClassDecision("batch", 0.3, 0.4, -0.1, features),
        ),
        model_version="3",
        window_end_unix_s=1_700_000_000.0,
    )


async def test_reopened_store_knows_the_newest_snapshot_and_why(
    tmp_path: Path, publisher: Publisher
) -> None:
    first = await publisher.publish(_plan())
    second = await publisher.publish(_plan("champion 4"))
    reopened = SqliteStore(tmp_path / "trimtab.db", retention=1000)
    head = reopened.head()
    assert head is not None
    assert head.snapshot == second
    assert not head.clean_stop
    assert reopened.decision(first.version) == Decision(first.version, 7, _plan())
    assert reopened.decision(999) is None
    reopened.close()


async def test_stop_in_order_is_remembered(store: SqliteStore, publisher: Publisher) -> None:
    await publisher.publish(_plan())
    await publisher.stop()
    head = store.head()
    assert head is not None
    assert head.clean_stop


async def test_a_clean_stop_counts_only_for_the_snapshot_it_was_made_with(
    store: SqliteStore, publisher: Publisher
) -> None:
    await publisher.publish(_plan())
    await publisher.stop()
    await publisher.publish(_plan())
    head = store.head()
    assert head is not None
    assert not head.clean_stop


def test_new_store_is_empty(store: SqliteStore) -> None:
    assert store.head() is None
    assert store.discipline() is None
    assert store.events() == []


async def test_size_is_bounded(tmp_path: Path, publisher: Publisher, clock: VirtualClock) -> None:
    small = SqliteStore(tmp_path / "small.db", retention=5)
    for _ in range(20):
        snapshot = await publisher.publish(_plan())
        small.save(snapshot, Decision(snapshot.version, snapshot.epoch, _plan()))
        small.record(Event(clock.unix_s(), EventKind.STARTED, "test", str(snapshot.version)))
    assert [small.decision(version) is not None for version in (14, 15, 16, 20)] == [
        *(False, False),
        *(True, True),
    ]
    assert [event.detail for event in small.events()] == ["16", "17", "18", "19", "20"]
    small.close()


async def test_skipped_versions_cost_no_history(tmp_path: Path, publisher: Publisher) -> None:
    small = SqliteStore(tmp_path / "small.db", retention=5)
    snapshot = await publisher.publish(_plan())
    versions = [1, 2, 3, 1000, 1001, 50_000, 50_001]
    for version in versions:
        small.save(replace(snapshot, version=version), Decision(version, 7, _plan()))
    kept = [version for version in versions if small.decision(version) is not None]
    assert kept == versions[2:]
    small.close()


async def test_smaller_retention_takes_effect_on_what_is_there(
    tmp_path: Path, publisher: Publisher
) -> None:
    for retention, first in ((10, 1), (4, 11)):
        small = SqliteStore(tmp_path / "small.db", retention=retention)
        snapshot = await publisher.publish(_plan())
        for version in range(first, first + 10):
            small.save(replace(snapshot, version=version), Decision(version, 7, _plan()))
        small.close()
    with sqlite3.connect(tmp_path / "small.db") as connection:
        rows = connection.execute("SELECT version FROM published ORDER BY version").fetchall()
    connection.close()
    assert rows == [(17,), (18,), (19,), (20,)]


@pytest.mark.parametrize(
    "damage",
    [
        "INSERT OR REPLACE INTO settings VALUES ('discipline', 'lifo')",
        "INSERT INTO events VALUES (99, 0, 'invented', 'ada', '')",
        "UPDATE published SET snapshot = '{}'",
        "UPDATE published SET decision = 'nonsense'",
    ],
)
async def test_record_of_another_kind_is_a_store_error(
    tmp_path: Path, store: SqliteStore, publisher: Publisher, damage: str
) -> None:
    await publisher.publish(_plan())
    with sqlite3.connect(tmp_path / "trimtab.db") as connection:
        connection.execute(damage)
    connection.close()

    def read_all() -> None:
        store.head(), store.decision(1), store.discipline(), store.events()

    with pytest.raises(StoreError, match=r"trimtab\.db"):
        read_all()


def test_one_control_plane_at_a_time_claims_a_store(tmp_path: Path, store: SqliteStore) -> None:
    store.claim()
    second = SqliteStore(tmp_path / "trimtab.db", retention=1000)
    with pytest.raises(StoreError, match="another control plane"):
        second.claim()
    store.close()
    second.claim()
    second.close()


async def test_mode_and_discipline_changes_are_events(
    store: SqliteStore, publisher: Publisher
) -> None:
    await publisher.publish(_plan())
    await publisher.publish(_plan())
    await publisher.publish(_plan("2 windows missed", Mode.HOLD))
    await publisher.set_discipline(Discipline.FCFS, actor="ada", reason="compare")
    kept = [(event.kind, event.actor, event.detail) for event in store.events()]
    assert kept == [
        (EventKind.MODE_CHANGED, "controlplane", "learned: champion 3"),
        (EventKind.MODE_CHANGED, "controlplane", "hold: 2 windows missed"),
        (EventKind.DISCIPLINE_CHANGED, "ada", "fcfs: compare"),
    ]
    assert store.discipline() is Discipline.FCFS


async def test_locked_store_stops_no_snapshot_and_no_version_is_used_twice(
    tmp_path: Path, store: SqliteStore, publisher: Publisher, metrics: Metrics
) -> None:
    await publisher.publish(_plan())
    blocker = sqlite3.connect(tmp_path / "trimtab.db", isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    unstored = await publisher.publish(_plan())
    assert unstored.version == 2
    with pytest.raises(StoreError):
        await publisher.set_discipline(Discipline.FCFS, actor="ada", reason="compare")
    assert publisher.discipline is Discipline.APQ
    blocker.execute("ROLLBACK")
    blocker.close()
    assert metrics.store_failures._value.get() == 1
    assert await publisher.decision(2) is not None  # the newest is in memory, too
    third = await publisher.publish(_plan())
    assert third.version == 3
    assert store.decision(2) is None
    assert store.decision(3) is not None


async def test_stop_after_a_failed_write_is_not_clean(
    tmp_path: Path, store: SqliteStore, publisher: Publisher
) -> None:
    await publisher.publish(_plan())
    blocker = sqlite3.connect(tmp_path / "trimtab.db", isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    await publisher.publish(_plan())
    blocker.execute("ROLLBACK")
    blocker.close()
    await publisher.stop()
    head = store.head()
    assert head is not None
    assert not head.clean_stop


def test_file_that_is_no_database_is_a_store_error(tmp_path: Path) -> None:
    path = tmp_path / "trimtab.db"
    path.write_text("this is no database, however long it may be " * 50)
    with pytest.raises(StoreError, match=r"trimtab\.db"):
        SqliteStore(path, retention=100)


def test_folder_that_cant_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        SqliteStore(tmp_path / "file" / "trimtab.db", retention=100)


def test_weight_that_no_engine_would_take_is_no_plan() -> None:
    with pytest.raises(ValueError, match="'vip' is nan"):
        Plan(Mode.RULE, "", (ClassDecision("vip", float("nan")),))
