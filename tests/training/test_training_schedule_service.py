"""The schedule as a process of its own, whose runs are small programs."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler

from controlplane.clock import SystemClock
from training.errors import AlreadyRunning, BadSchedule
from training.schedule.folder import StateFolder
from training.schedule.journal import Timetable
from training.schedule.service import SchedulePlan, keep_schedule, run_command

NEW_YEAR = "0 0 1 1 *"
KEEP = """
import sys
from pathlib import Path
from controlplane.clock import SystemClock
from training.schedule.folder import StateFolder
from training.schedule.journal import Timetable
from training.schedule.service import SchedulePlan, keep_schedule

folder, cron, at_once, run = sys.argv[1:]
command = (sys.executable, "-c", run, folder)
plan = SchedulePlan(Timetable(cron, "UTC"), command, grace_s=3600, at_once=at_once == "now")
keep_schedule(plan, StateFolder(Path(folder)), SystemClock())
"""
SLOW = """
import pathlib, sys, time
at = pathlib.Path(sys.argv[1])
(at / 'began').touch()
time.sleep(1.5)
(at / 'ended').touch()
"""
QUICK = "import pathlib, sys; pathlib.Path(sys.argv[1], 'ended').touch(); print('version 3')"
BROKEN = "import sys; sys.exit('error: no engine has reported\\n  fix: start one')"

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a schedule; its log goes to a file."""
    started: list[subprocess.Popen[str]] = []

    def begin(run: str, *, cron: str = NEW_YEAR, now: bool = False) -> subprocess.Popen[str]:
        with (tmp_path / "log").open("a") as log:
            arguments = [str(tmp_path), cron, "now" if now else "later", run]
            started.append(
                subprocess.Popen(
                    [sys.executable, "-c", KEEP, *arguments], stdout=log, stderr=log, text=True
                )
            )
        wait_for(lambda: log_of(tmp_path).count("schedule kept") == len(started))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait(timeout=20)


def log_of(folder: Path) -> str:
    return (folder / "log").read_text() if (folder / "log").exists() else ""


def wait_for(condition: Callable[[], bool], limit_s: float = 300.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def end(schedule: subprocess.Popen[str], number: int = signal.SIGTERM) -> int:
    schedule.send_signal(number)
    return schedule.wait(timeout=300)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_schedule_after_the_run_in_hand(
    start: Start, tmp_path: Path, number: int
) -> None:
    schedule = start(SLOW, now=True)
    wait_for((tmp_path / "began").exists)
    assert end(schedule, number) == 0
    assert (tmp_path / "ended").exists()
    assert not StateFolder(tmp_path).schedule_runs
    assert "schedule ended" in log_of(tmp_path)


def test_failed_run_is_logged_with_its_cause_and_the_schedule_goes_on(
    start: Start, tmp_path: Path
) -> None:
    schedule = start(BROKEN, now=True)
    wait_for(lambda: "no engine has reported" in log_of(tmp_path))
    assert schedule.poll() is None
    assert StateFolder(tmp_path).schedule_runs
    assert end(schedule) == 0


def make_due(folder: StateFolder, *, ago: timedelta) -> None:
    """As if the schedule had been away when its time came."""
    store = SQLAlchemyJobStore(folder.jobs_url)
    store.start(BackgroundScheduler(timezone=UTC), "default")
    (job,) = store.get_all_jobs()
    job._modify(next_run_time=datetime.now(UTC) - ago)
    store.update_job(job)
    store.shutdown()


def test_schedule_that_starts_again_catches_up_on_the_run_it_missed(
    start: Start, tmp_path: Path
) -> None:
    end(start(QUICK))
    make_due(StateFolder(tmp_path), ago=timedelta(minutes=10))
    again = start(QUICK)
    wait_for(lambda: "version 3" in log_of(tmp_path))
    assert end(again) == 0
    assert log_of(tmp_path).count("version 3") == 1


def test_run_missed_for_longer_than_the_grace_is_left_out(start: Start, tmp_path: Path) -> None:
    end(start(QUICK))
    make_due(StateFolder(tmp_path), ago=timedelta(hours=2))
    again = start(QUICK)
    wait_for(lambda: "left out" in log_of(tmp_path))
    assert end(again) == 0
    assert not (tmp_path / "ended").exists()


def test_other_times_take_the_place_of_those_stored(start: Start, tmp_path: Path) -> None:
    end(start(QUICK))
    make_due(StateFolder(tmp_path), ago=timedelta(minutes=10))
    assert end(start(QUICK, cron="0 0 2 1 *")) == 0
    assert not (tmp_path / "ended").exists()
    assert StateFolder(tmp_path).journal.timetable() == Timetable("0 0 2 1 *", "UTC")


@pytest.mark.parametrize("cron", ["0 0 31 2 *", "0 0 * *"])
def test_expression_that_never_comes_or_is_none_is_refused(tmp_path: Path, cron: str) -> None:
    plan = SchedulePlan(Timetable(cron, "UTC"), ("true",), grace_s=60)
    with pytest.raises(BadSchedule, match=r"0 0"):
        keep_schedule(plan, StateFolder(tmp_path), SystemClock())
    assert StateFolder(tmp_path).journal.timetable() is None


def test_second_schedule_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    plan = SchedulePlan(Timetable(NEW_YEAR, "UTC"), ("true",), grace_s=60)
    folder = StateFolder(tmp_path)
    with folder.keep_schedule(), pytest.raises(AlreadyRunning):
        keep_schedule(plan, folder, SystemClock())


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(4)", "exit code 4"),
    ],
)
def test_cause_of_a_run_that_failed_is_its_own_last_word(
    capsys: pytest.CaptureFixture[str], code: str, cause: str
) -> None:
    assert run_command([sys.executable, "-c", code]) != 0
    assert cause in capsys.readouterr().out


def test_program_that_is_not_there_is_a_failed_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["/no/such/program"]) == 1
    assert "can't be started" in capsys.readouterr().out
