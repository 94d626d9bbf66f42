"""`trimtab train schedule` and `status`: retrain by the clock, and see what became of it."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cli.durations import duration_s
from cli.failure import ExitCode, fail
from cli.serve import configuration
from controlplane.clock import SystemClock
from controlplane.log import configure_log
from training.errors import AlreadyRunning, BadSchedule, StateUnavailable
from training.schedule.folder import StateFolder
from training.schedule.journal import LOST_CAUSE, Outcome, PastRun, Timetable

ConfigFile = Annotated[Path, typer.Option("--config", help="the control plane's YAML file")]
DEFAULT_CONFIG = Path("trimtab.yaml")


def schedule(
    *,
    cron: Annotated[
        str | None,
        typer.Option(help='when: five fields as in crontab, e.g. "0 */6 * * *"'),
    ] = None,
    timezone: Annotated[str, typer.Option(help="of the cron expression")] = "UTC",
    since: Annotated[
        float,
        typer.Option(parser=duration_s, metavar="DURATION", help="history that each run reads"),
    ] = "24h",  # type: ignore[assignment]  # Typer parses a default as it does what is typed
    config: ConfigFile = DEFAULT_CONFIG,
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="instead of the one in the configuration")
    ] = None,
    control_plane: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="instead of `listen` in the configuration"),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            parser=duration_s,
            metavar="DURATION",
            help="leave a run out that could not start within this time of its due time",
        ),
    ] = "1h",  # type: ignore[assignment]  # likewise
    promote: Annotated[
        bool, typer.Option("--promote", help="versions that every gate lets pass become @champion")
    ] = False,
    now: Annotated[bool, typer.Option("--now", help="run once at once; alone, then leave")] = False,
) -> None:
    """Retrain by the clock until SIGTERM or Ctrl-C, which let the run in hand end."""
    # APScheduler and SQLAlchemy take a while to import; other commands need not wait for them.
    from training.schedule.cron import EXAMPLE  # noqa: PLC0415
    from training.schedule.service import SchedulePlan, keep_schedule, run_command  # noqa: PLC0415

    if cron is None and not now:
        fail("a schedule needs its times", fix=f"pass --cron: {EXAMPLE}", code=ExitCode.USAGE)
    folder = StateFolder(configuration(config).training.state)
    configure_log()
    addresses = {"--prometheus": prometheus, "--control-plane": control_plane}
    command = run_of_schedule(since_s=since, config=config, addresses=addresses, promote=promote)
    if cron is None:
        raise typer.Exit(run_command(command))
    plan = SchedulePlan(Timetable(cron, timezone), command, grace_s=int(grace), at_once=now)
    try:
        with state_failures():
            keep_schedule(plan, folder, SystemClock())
    except BadSchedule as error:
        fail(str(error), fix=EXAMPLE, code=ExitCode.USAGE)


def run_of_schedule(
    *, since_s: float, config: Path, addresses: Mapping[str, str | None], promote: bool = False
) -> tuple[str, ...]:
    """The command of one run.

    Args:
        since_s: history that it reads.
        config: the control plane's file.
        addresses: by option; None: the configuration says.
        promote: what passes its gates.
    """
    named = [text for pair in addresses.items() if pair[1] is not None for text in pair if text]
    arguments = ("--since", f"{since_s}s", "--config", str(config.absolute()), *named)
    # -P: a folder named `cli` where it runs must not be taken for this one.
    program = (sys.executable, "-P", "-m", "cli", "train", "run")
    passed = ("--promote",) if promote else ()
    return (*program, *arguments, *passed, "--json", "--started-by", "schedule")


def status(
    config: ConfigFile = DEFAULT_CONFIG,
    count: Annotated[int, typer.Option(min=1, max=1000, help="runs to show")] = 10,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show the last retrainings and when the next one is due."""
    folder = StateFolder(configuration(config).training.state)
    with state_failures():
        journal = folder.journal
        timetable = journal.timetable()
        kept, in_hand = folder.schedule_runs, folder.retrains
        runs = [_as_it_stands(run, in_hand=in_hand) for run in journal.last(count)]
    next_unix_s = _next_unix_s(timetable) if kept and timetable is not None else None
    if as_json:
        document = {
            "schedule": None if timetable is None else asdict(timetable),
            "schedule_runs": kept,
            "next_run_unix_s": next_unix_s,
            "runs": [asdict(run) for run in runs],
        }
        typer.echo(json.dumps(document, indent=2))
        return
    typer.echo(_schedule_line(timetable, next_unix_s))
    Console().print(_table(runs))


@contextmanager
def state_failures() -> Iterator[None]:
    """End the command with what is wrong with the state's folder, or who holds it."""
    try:
        yield
    except AlreadyRunning as error:
        fail(str(error), fix="wait for it: trimtab train status", code=ExitCode.UNAVAILABLE)
    except StateUnavailable as error:
        fail(
            str(error),
            fix="make the folder training.state of the configuration writable",
            code=ExitCode.UNAVAILABLE,
        )


def _as_it_stands(run: PastRun, *, in_hand: bool) -> PastRun:
    """A run that is noted as running while nobody runs was killed."""
    if run.outcome is not Outcome.RUNNING or in_hand:
        return run
    return replace(run, outcome=Outcome.LOST, cause=LOST_CAUSE)


def _next_unix_s(timetable: Timetable) -> float | None:
    from training.schedule.cron import cron_trigger, next_run_unix_s  # noqa: PLC0415 - as above

    trigger = cron_trigger(timetable.cron, timetable.timezone)
    return next_run_unix_s(trigger, SystemClock().unix_s())


def _schedule_line(timetable: Timetable | None, next_unix_s: float | None) -> str:
    if timetable is None:
        return "no schedule was ever kept here"
    when = f"{timetable.cron} {timetable.timezone}"
    if next_unix_s is None:
        return f"no process keeps the schedule ({when}): start trimtab train schedule"
    return f"next run {_utc(next_unix_s)} UTC ({when})"


def _table(runs: list[PastRun]) -> Table:
    table = Table()
    for heading in ("run", "started, UTC", "by", "took", "outcome", "version"):
        table.add_column(heading, no_wrap=True)
    table.add_column("cause")
    for run in runs:
        took_s = None if run.ended_unix_s is None else run.ended_unix_s - run.started_unix_s
        table.add_row(
            str(run.number),
            _utc(run.started_unix_s),
            run.started_by.value,
            "-" if took_s is None else f"{took_s:.0f} s",
            run.outcome.value,
            run.version or "-",
            run.cause or "",
        )
    return table


def _utc(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s, tz=UTC):%Y-%m-%d %H:%M}"
