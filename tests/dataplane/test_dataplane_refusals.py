from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.refusals import LOOK_INTERVAL_S, NoticeBoard, NoticeWriter

NOW_S = 1.7e9
GOOD = (
    b'{"engine_id":"e","refused":["vip"],"retry_after_s":1.0,'
    b'"written_at_unix_s":1.7e9,"lifetime_s":60.0}'
)


def writer(directory: Path, engine_id: str = "e1") -> NoticeWriter:
    return NoticeWriter(directory, engine_id=engine_id, interval_s=0.25)


def seen(directory: Path, now_unix_s: float = NOW_S) -> dict[str, float]:
    return dict(NoticeBoard(directory).refused(0.0, now_unix_s))


def test_an_api_server_sees_what_an_engine_refuses(tmp_path: Path) -> None:
    writer(tmp_path).publish(frozenset({"batch", "free"}), 2.5, NOW_S)
    assert seen(tmp_path) == {"batch": 2.5, "free": 2.5}


def test_the_newest_notice_of_an_engine_counts(tmp_path: Path) -> None:
    notices = writer(tmp_path)
    notices.publish(frozenset({"batch"}), 2.5, NOW_S)
    notices.publish(frozenset(), 0.0, NOW_S)
    assert seen(tmp_path) == {}


def test_a_dead_engines_notice_lapses(tmp_path: Path) -> None:
    writer(tmp_path).publish(frozenset({"batch"}), 1.0, NOW_S)
    assert seen(tmp_path, NOW_S + 1.9)
    assert not seen(tmp_path, NOW_S + 2.1)


def test_a_notice_outlives_a_slow_rhythm_of_renewal(tmp_path: Path) -> None:
    slow = NoticeWriter(tmp_path, engine_id="e1", interval_s=10.0)
    slow.publish(frozenset({"batch"}), 1.0, NOW_S)
    assert seen(tmp_path, NOW_S + 30.0)


def test_a_clock_that_steps_back_does_not_keep_a_dead_engines_notice(tmp_path: Path) -> None:
    writer(tmp_path).publish(frozenset({"batch"}), 1.0, NOW_S)
    assert not seen(tmp_path, NOW_S - 3600.0)


def test_a_class_is_refused_when_every_live_engine_refuses_it(tmp_path: Path) -> None:
    writer(tmp_path, "e1").publish(frozenset({"batch", "free"}), 9.0, NOW_S)
    writer(tmp_path, "e2").publish(frozenset({"batch"}), 4.0, NOW_S)
    assert seen(tmp_path) == {"batch": 4.0}
    writer(tmp_path, "e3").publish(frozenset(), 0.0, NOW_S)
    assert seen(tmp_path) == {}


def test_a_dead_engine_neither_refuses_nor_admits(tmp_path: Path) -> None:
    writer(tmp_path, "dead").publish(frozenset(), 0.0, NOW_S - 60.0)
    writer(tmp_path, "live").publish(frozenset({"batch"}), 1.0, NOW_S)
    assert seen(tmp_path) == {"batch": 1.0}


def test_an_engine_that_ends_takes_its_notice_away(tmp_path: Path) -> None:
    notices = writer(tmp_path)
    notices.publish(frozenset({"batch"}), 1.0, NOW_S)
    notices.withdraw()
    notices.withdraw()
    assert list(tmp_path.iterdir()) == []


def test_an_engine_id_of_any_length_and_with_slashes_makes_a_file_name(tmp_path: Path) -> None:
    writer(tmp_path, "/../" * 32).publish(frozenset({"batch"}), 1.0, NOW_S)
    assert seen(tmp_path) == {"batch": 1.0}


def test_a_directory_that_is_missing_is_made_by_the_engine_and_empty_to_the_server(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "run" / "trimtab"
    assert seen(directory) == {}
    writer(directory).publish(frozenset({"batch"}), 1.0, NOW_S)
    assert seen(directory) == {"batch": 1.0}


def test_a_directory_that_is_none_refuses_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert seen(tmp_path / "file") == {}


def test_a_notice_is_plain_json(tmp_path: Path) -> None:
    (tmp_path / "trimtab-refusals-x-1.json").write_bytes(GOOD)
    assert seen(tmp_path) == {"vip": 1.0}


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{}", b"[]", b"\xff", b"[" * 10_000, b'{"refused": "batch"}'),
        GOOD.replace(b'"retry_after_s":1.0', b'"retry_after_s":NaN'),
        GOOD.replace(b'"retry_after_s":1.0', b'"retry_after_s":-1'),
        GOOD.replace(b'"written_at_unix_s":1.7e9', b'"written_at_unix_s":"long ago"'),
        GOOD.replace(b'["vip"]', b'[["vip"]]'),
    ],
)
def test_what_is_no_notice_is_passed_over(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "trimtab-refusals-x-1.json").write_bytes(text)
    (tmp_path / "trimtab-refusals-y-1.json").mkdir()
    (tmp_path / "counter_1.db").write_bytes(b"metrics")
    writer(tmp_path).publish(frozenset({"batch"}), 1.0, NOW_S)
    assert seen(tmp_path) == {"batch": 1.0}


def test_the_directory_is_looked_at_once_per_interval(tmp_path: Path) -> None:
    board = NoticeBoard(tmp_path)
    assert not board.refused(10.0, NOW_S)
    writer(tmp_path).publish(frozenset({"batch"}), 1.0, NOW_S)
    assert not board.refused(10.0 + LOOK_INTERVAL_S / 2, NOW_S)
    assert board.refused(10.0 + LOOK_INTERVAL_S, NOW_S)


@given(
    st.dictionaries(
        st.sampled_from(["e1", "e2", "e3"]),
        st.tuples(
            st.frozensets(st.sampled_from(["a", "b", "c"])),
            st.floats(0, 60),
            st.integers(0, 4),  # whole seconds: exact in a Unix time
        ),
    )
)
def test_the_board_agrees_with_asking_each_engine(
    tmp_path_factory: pytest.TempPathFactory,
    engines: dict[str, tuple[frozenset[str], float, int]],
) -> None:
    directory = tmp_path_factory.mktemp("notices")
    for engine_id, (refused, after_s, age_s) in engines.items():
        writer(directory, engine_id).publish(refused, after_s, NOW_S - age_s)
    live = [(refused, after_s) for refused, after_s, age_s in engines.values() if age_s <= 2.0]
    expected = {
        name: min(after_s for _, after_s in live)
        for name in ("a", "b", "c")
        if live and all(name in refused for refused, _ in live)
    }
    assert seen(directory) == expected
