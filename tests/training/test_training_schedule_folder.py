import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.clock import SystemClock
from training.errors import AlreadyRunning, StateUnavailable
from training.schedule.folder import StateFolder
from training.schedule.journal import Journal, Outcome, StartedBy, Timetable

CLOCK = SystemClock()


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path / "state")


def outcomes(folder: StateFolder) -> list[Outcome]:
    return [run.outcome for run in folder.journal.last(10)]


def test_run_that_ends_is_noted_with_its_version(folder: StateFolder) -> None:
    with folder.retrain(StartedBy.SCHEDULE, CLOCK) as run:
        assert outcomes(folder) == [Outcome.RUNNING]
        assert folder.retrains
        run.version = "7"
    (noted,) = folder.journal.last(10)
    assert (noted.outcome, noted.version, noted.cause) == (Outcome.DONE, "7", None)
    assert noted.started_by is StartedBy.SCHEDULE
    assert noted.ended_unix_s is not None
    assert noted.ended_unix_s >= noted.started_unix_s
    assert not folder.retrains


@pytest.mark.parametrize(
    ("error", "cause"),
    [(ValueError("no traffic"), "no traffic"), (KeyboardInterrupt(), "Keyboard")],
)
def test_run_that_fails_is_noted_with_its_cause(
    folder: StateFolder, error: BaseException, cause: str
) -> None:
    with pytest.raises(type(error)), folder.retrain(StartedBy.HAND, CLOCK):
        raise error
    (noted,) = folder.journal.last(10)
    assert noted.outcome is Outcome.FAILED
    assert noted.cause is not None
    assert noted.cause.startswith(cause)
    with folder.retrain(StartedBy.HAND, CLOCK):
        assert outcomes(folder) == [Outcome.RUNNING, Outcome.FAILED]


def test_second_run_is_skipped_while_one_is_in_hand(folder: StateFolder) -> None:
    with folder.retrain(StartedBy.HAND, CLOCK):
        with (
            pytest.raises(AlreadyRunning, match="another retraining"),
            folder.retrain(StartedBy.SCHEDULE, CLOCK),
        ):
            pytest.fail("two runs overlap")
        assert outcomes(folder) == [Outcome.SKIPPED, Outcome.RUNNING]
    assert outcomes(folder) == [Outcome.SKIPPED, Outcome.DONE]


def test_killed_run_is_lost_and_blocks_nobody(folder: StateFolder) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from controlplane.clock import SystemClock\n"
        "from training.schedule.folder import StateFolder\n"
        "from training.schedule.journal import StartedBy\n"
        "with StateFolder(Path(sys.argv[1])).retrain(StartedBy.HAND, SystemClock()):\n"
        "    print('in hand', flush=True); time.sleep(60)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", code, folder.path], stdout=subprocess.PIPE)
    assert run.stdout is not None
    with run.stdout as words:
        assert words.readline() == b"in hand\n"
        assert folder.retrains
        with pytest.raises(AlreadyRunning), folder.retrain(StartedBy.HAND, CLOCK):
            pytest.fail("two processes retrain at once")
        run.send_signal(signal.SIGKILL)
        run.wait(timeout=20)
    assert not folder.retrains
    with folder.retrain(StartedBy.HAND, CLOCK):
        assert outcomes(folder) == [Outcome.RUNNING, Outcome.SKIPPED, Outcome.LOST]


def test_one_process_keeps_the_schedule(folder: StateFolder) -> None:
    assert not folder.schedule_runs
    with folder.keep_schedule():
        assert folder.schedule_runs
        with pytest.raises(AlreadyRunning, match="keeps the schedule"), folder.keep_schedule():
            pytest.fail("two schedules on one store")
        with folder.retrain(StartedBy.SCHEDULE, CLOCK):
            pass  # its runs are not in its way
    assert not folder.schedule_runs


def test_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    blocked = StateFolder(tmp_path / "file" / "state")
    with pytest.raises(StateUnavailable, match="file"), blocked.keep_schedule():
        pytest.fail("there is no such folder")
    with pytest.raises(StateUnavailable), blocked.retrain(StartedBy.HAND, CLOCK):
        pytest.fail("there is no such folder")


def test_journal_that_is_none_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "runs.db").write_text("not a database, but long enough to look like one" * 20)
    with pytest.raises(StateUnavailable, match="not a database"):
        _ = StateFolder(tmp_path).journal


def test_journal_keeps_the_newest_runs(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "runs.db", kept_runs=3)
    for second in range(8):
        journal.skip(StartedBy.HAND, float(second), "busy")
    assert [run.started_unix_s for run in journal.last(8)] == [7.0, 6.0, 5.0]


def test_timetable_is_that_of_the_last_schedule(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "runs.db")
    assert journal.timetable() is None
    for cron in ("0 0 * * *", "0 1 * * *"):
        journal.set_timetable(Timetable(cron, "UTC"))
    assert Journal(tmp_path / "runs.db").timetable() == Timetable("0 1 * * *", "UTC")
