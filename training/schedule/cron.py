"""Cron expressions, as crontab(5) and Kubernetes read them, as APScheduler's triggers.

APScheduler 3 reads the five fields otherwise in two respects. It counts weekdays from Monday
where cron counts from Sunday (0, and 7 as well). And of the two fields that name days it wants
both to hold, where cron takes either if both are restricted.

Source: POSIX.1-2017, crontab, "Extended description".
"""

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger

from training.errors import BadSchedule

EXAMPLE = '"0 */6 * * *" is every six hours, "30 2 * * 1-5" is 02:30 from Monday to Friday'

_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS = 5
_WEEKDAY_TERM = re.compile(r"(\*|[a-z0-9]+)(?:-([a-z0-9]+))?(?:/([0-9]+))?")


def cron_trigger(expression: str, timezone: str) -> BaseTrigger:
    """The instants of an expression, its hours being those of a time zone.

    Raises:
        BadSchedule: either of them is none, with the reason.
    """
    zone = _zone(timezone)
    fields = expression.split()
    if len(fields) != _FIELDS:
        raise BadSchedule(f"cron expression {expression!r} has {len(fields)} fields, not {_FIELDS}")
    minute, hour, day, month, weekday = fields
    either = not day.startswith("*") and not weekday.startswith("*")
    try:
        names = _weekday_names(weekday)
        pairs = [(day, "*"), ("*", names)] if either else [(day, names)]
        triggers = [
            CronTrigger(
                minute=minute, hour=hour, day=days, month=month, day_of_week=names, timezone=zone
            )
            for days, names in pairs
        ]
    except ValueError as error:
        raise BadSchedule(f"cron expression {expression!r}: {error}") from error
    return OrTrigger(triggers) if either else triggers[0]


def next_run_unix_s(trigger: BaseTrigger, after_unix_s: float) -> float | None:
    """The first instant from then on; None: it never comes, as the 31st of February."""
    after = datetime.fromtimestamp(after_unix_s, tz=UTC)
    due: datetime | None = trigger.get_next_fire_time(None, after)
    return None if due is None else due.timestamp()


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadSchedule(
            f"there is no time zone {name!r}; one is UTC, another Europe/Vienna"
        ) from error


def _weekday_names(field: str) -> str:
    """The field's days by name, in which nobody counts."""
    chosen = {day % 7 for term in field.lower().split(",") for day in _weekdays(term)}
    return ",".join(_DAYS[day] for day in sorted(chosen))


def _weekdays(term: str) -> range:
    """Days of one term, counted from Sunday = 0 up to Sunday = 7.

    Raises:
        ValueError: it is no term.
    """
    match = _WEEKDAY_TERM.fullmatch(term)
    if match is None:
        raise ValueError(f"{term!r} names no day of the week")
    first_text, last_text, step_text = match.groups()
    step = int(step_text or 1)
    if step == 0:
        raise ValueError(f"{term!r} has a step of 0")
    if first_text == "*":
        if last_text:
            raise ValueError(f"{term!r} names no day of the week")
        return range(0, 7, step)
    first = _weekday(first_text)
    last = _last(first, last_text, stepped=step_text is not None)
    if last < first:
        raise ValueError(f"in {term!r} the last day comes before the first")
    return range(first, last + 1, step)


def _last(first: int, text: str | None, *, stepped: bool) -> int:
    if text is None:
        return max(first, 6) if stepped else first
    last = _weekday(text)
    return 7 if last == 0 < first else last


def _weekday(text: str) -> int:
    if text in _DAYS:
        return _DAYS.index(text)
    if text in {"0", "1", "2", "3", "4", "5", "6", "7"}:
        return int(text)
    raise ValueError(f"{text!r} is no day of the week; they are 0 to 7 (Sunday is both) or mon")
