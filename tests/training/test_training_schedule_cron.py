import calendar
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.errors import BadSchedule
from training.schedule.cron import cron_trigger, next_run_unix_s

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


def next_run(expression: str, after: datetime, timezone: str = "UTC") -> datetime | None:
    unix_s = next_run_unix_s(cron_trigger(expression, timezone), after.timestamp())
    return None if unix_s is None else datetime.fromtimestamp(unix_s, tz=UTC)


def weekdays(field: str) -> set[str]:
    """The days of one week on which an expression with this field runs."""
    due, found = MONDAY, set()
    while (due := next_run(f"0 12 * * {field}", due)) and due < MONDAY + timedelta(days=7):
        found.add(NAMES[(due.weekday() + 1) % 7])
        due += timedelta(minutes=1)
    return found


@pytest.mark.parametrize(
    ("field", "days"),
    [
        ("0", {"sun"}),
        ("7", {"sun"}),
        ("1-5", {"mon", "tue", "wed", "thu", "fri"}),
        ("5-7", {"fri", "sat", "sun"}),
        ("Sat-Sun", {"sat", "sun"}),
        ("*/2", {"sun", "tue", "thu", "sat"}),
        ("2/2", {"tue", "thu", "sat"}),
        ("mon,3", {"mon", "wed"}),
        ("*", set(NAMES)),
    ],
)
def test_weekdays_count_from_sunday_as_in_cron(field: str, days: set[str]) -> None:
    assert weekdays(field) == days


def test_hours_are_those_of_the_zone() -> None:
    assert next_run("30 2 * * *", MONDAY) == MONDAY + timedelta(hours=2, minutes=30)
    assert next_run("30 2 * * *", MONDAY, "Asia/Kolkata") == MONDAY + timedelta(hours=21)


def test_zone_whose_clocks_change_keeps_its_hour() -> None:
    before = datetime(2026, 3, 28, 12, tzinfo=UTC)
    first = next_run("0 6 * * *", before, "Europe/Vienna")
    assert first == datetime(2026, 3, 29, 4, tzinfo=UTC)  # the night in which summer begins
    assert next_run("0 6 * * *", before - timedelta(days=1), "Europe/Vienna") == datetime(
        2026, 3, 28, 5, tzinfo=UTC
    )


def matches(moment: datetime, day: str, weekday: str) -> bool:
    """crontab's rule, said slowly, for fields that are a star or one number."""
    on_day = day == "*" or moment.day == int(day)
    on_weekday = weekday == "*" or (moment.weekday() + 1) % 7 == int(weekday) % 7
    if day != "*" and weekday != "*":
        return on_day or on_weekday
    return on_day and on_weekday


@given(
    day=st.just("*") | st.integers(1, 28).map(str),
    weekday=st.just("*") | st.integers(0, 7).map(str),
    offset=st.integers(0, 400),
)
def test_days_are_those_of_cron(day: str, weekday: str, offset: int) -> None:
    after = MONDAY + timedelta(days=offset)
    expected = after
    while not matches(expected, day, weekday):
        expected += timedelta(days=1)
    assert next_run(f"0 0 {day} * {weekday}", after) == expected


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "0 fields"),
        ("* * * *", "4 fields"),
        ("* * * * * *", "6 fields"),
        ("61 * * * *", "higher than the maximum"),
        ("x * * * *", "x"),
        ("0 0 * * 8", "'8' is no day of the week"),
        ("0 0 * * noday", "'noday'"),
        ("0 0 * * 5-1", "before the first"),
        ("0 0 * * */0", "step of 0"),
        ("0 0 * * *-5", "names no day"),
        ("0 0 * * 1-", "names no day"),
    ],
)
def test_what_is_no_expression_is_refused_with_the_reason(expression: str, reason: str) -> None:
    with pytest.raises(BadSchedule, match=reason):
        cron_trigger(expression, "UTC")


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "Europe"])
def test_what_is_no_zone_is_refused(zone: str) -> None:
    with pytest.raises(BadSchedule, match="no time zone"):
        cron_trigger("0 0 * * *", zone)


def test_day_that_never_comes_has_no_next_run() -> None:
    assert next_run("0 0 31 2 *", MONDAY) is None
    leap = next_run("0 0 29 2 *", MONDAY)
    assert leap is not None
    assert calendar.isleap(leap.year)
