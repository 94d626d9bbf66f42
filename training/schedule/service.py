"""Keeping the schedule: a process that starts a retraining whenever the clock says so.

Each run is a process of its own. So one that is killed for its memory ends neither the schedule
nor leaks into the next, and one in hand goes on when the schedule is killed. That two never
overlap is for the runs' own lock to see to (`StateFolder.retrain`).

The job is kept in SQLite: a schedule that starts again catches up on a run that came due while
it was away, once, if that is no longer ago than the grace.
"""

import logging
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import Any

import structlog
from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    EVENT_SCHEDULER_STARTED,
    JobExecutionEvent,
    SchedulerEvent,
)
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.blocking import BlockingScheduler

from controlplane.clock import Clock
from training.errors import BadSchedule
from training.schedule.cron import cron_trigger, next_run_unix_s
from training.schedule.folder import StateFolder
from training.schedule.journal import Timetable

log = structlog.get_logger(__name__)

_JOB = "retrain"
_STORE = "default"


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """What to run, and when.

    Attributes:
        command: program and arguments of one run.
        grace_s: a run that can't start within this time of its due time is left out.
        at_once: start one run now, too.
    """

    timetable: Timetable
    command: tuple[str, ...]
    grace_s: int
    at_once: bool = False


def keep_schedule(plan: SchedulePlan, folder: StateFolder, clock: Clock) -> None:
    """Run by the clock until SIGTERM or Ctrl-C, then end after the run in hand.

    A second signal ends this process at once; the run in hand ends by itself.

    Raises:
        BadSchedule: the cron expression or the time zone is none, or never comes.
        AlreadyRunning: another process keeps the schedule.
        StateUnavailable: the folder can't be written.
    """
    trigger = cron_trigger(plan.timetable.cron, plan.timetable.timezone)
    due_unix_s = next_run_unix_s(trigger, clock.unix_s())
    if due_unix_s is None:
        raise BadSchedule(f"cron expression {plan.timetable.cron!r}: such a day never comes")
    with folder.keep_schedule():
        folder.journal.set_timetable(plan.timetable)
        scheduler = _scheduler(plan, folder, clock)
        due = datetime.fromtimestamp(due_unix_s, tz=UTC).isoformat()
        _run_until_signal(scheduler, log.bind(**asdict(plan.timetable), next_run=due))
        log.info("schedule ended")


def run_command(command: Sequence[str]) -> int:
    """Do one run to its end; returns its exit code. What went wrong goes to the log.

    The run is in a session of its own: Ctrl-C at a terminal is for the schedule alone.
    """
    log.info("a run starts")
    try:
        done = subprocess.run(  # noqa: S603 - our own program, no shell
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", start_new_session=True, check=False,
        )  # fmt: skip
    except OSError as error:
        log.error("a run failed", cause=f"{command[0]} can't be started: {error.strerror}")  # noqa: TRY400 - the cause says it
        return 1
    if done.returncode == 0:
        log.info("a run is done", result=done.stdout.strip())
    else:
        log.error("a run failed", cause=_cause(done))
    return done.returncode


def _cause(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return f"it was killed by {signal.Signals(-done.returncode).name}"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("error: ")]
    return (named or lines or [f"exit code {done.returncode}"])[-1].removeprefix("error: ")


def _scheduler(plan: SchedulePlan, folder: StateFolder, clock: Clock) -> BlockingScheduler:
    logging.getLogger("apscheduler").setLevel(logging.ERROR)  # the listener tells of the rest
    store = SQLAlchemyJobStore(folder.jobs_url)
    scheduler = BlockingScheduler(
        jobstores={_STORE: store}, executors={"default": ThreadPoolExecutor(1)}, timezone=UTC
    )
    scheduler.add_listener(_tell, EVENT_JOB_ERROR | EVENT_JOB_MAX_INSTANCES | EVENT_JOB_MISSED)
    timing = {}
    if plan.at_once:
        timing["next_run_time"] = datetime.fromtimestamp(clock.unix_s(), tz=UTC)
    elif (due := _still_due(store, scheduler, plan.timetable)) is not None:
        timing["next_run_time"] = due
    scheduler.add_job(
        run_command,
        cron_trigger(plan.timetable.cron, plan.timetable.timezone),
        id=_JOB,
        name=_name(plan.timetable),
        args=[list(plan.command)],
        coalesce=True,
        max_instances=1,
        misfire_grace_time=plan.grace_s,
        replace_existing=True,
        **timing,
    )
    return scheduler


def _still_due(
    store: SQLAlchemyJobStore, scheduler: BlockingScheduler, timetable: Timetable
) -> datetime | None:
    """When the stored job was to run next; None: there is none, or one with other times."""
    store.start(scheduler, _STORE)
    stored = store.lookup_job(_JOB)
    if stored is None or stored.name != _name(timetable):
        return None
    due: datetime = stored.next_run_time
    return due


def _name(timetable: Timetable) -> str:
    return f"{timetable.cron} {timetable.timezone}"


def _tell(event: JobExecutionEvent) -> None:
    if event.code == EVENT_JOB_MISSED:
        log.warning("a run was left out", cause=f"it was due {event.scheduled_run_time}")
    elif event.code == EVENT_JOB_MAX_INSTANCES:
        log.warning("a run was left out", cause="the one before is still in hand")
    else:
        log.error("a run failed", cause=str(event.exception))


def _run_until_signal(scheduler: BlockingScheduler, start_log: Any) -> None:
    """Run in the main thread, which alone gets signals."""
    before: dict[int, Any] = {}
    ending: list[threading.Thread] = []

    def end(_number: int, _frame: FrameType | None) -> None:
        _restore(before)  # a second signal ends this process at once
        log.info("asked to end; a run in hand goes on to its end")
        # In a thread: the scheduler's locks may be held by the very thread that got the signal.
        ending.append(threading.Thread(target=_shut_down, args=(scheduler,), name="end"))
        ending[0].start()

    def listen(_event: SchedulerEvent) -> None:
        """Before it has started it can't be shut down: till then a signal does as ever."""
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, end)
        start_log.info("schedule kept")

    scheduler.add_listener(listen, EVENT_SCHEDULER_STARTED)
    try:
        scheduler.start()
    finally:
        for thread in ending:
            thread.join()
        _restore(before)


def _restore(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _shut_down(scheduler: BlockingScheduler) -> None:
    scheduler.pause()  # so that nothing new starts while the run in hand is waited for
    scheduler.shutdown(wait=True)
