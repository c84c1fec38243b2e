"""The text of times and durations."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_ssp.common.logs import RepeatFilter
from spark_ssp.common.times import clock_text, date_text, duration_text, seconds_text, time_text

INT64: Final = st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FORM: Final = re.compile(
    r"([+-]?)(\d{4,9})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{3}))?Z", re.ASCII
)
_UNITS: Final = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_RESOLUTION: Final = {"ms": 1, "min": 1_000, "h": 60_000, "d": 3_600_000}
"""Of a duration by its first unit."""


def _days_before(year: int) -> int:
    """Return the days from 0000-01-01 to the first day of a year, leap years counted by hand."""
    last = year - 1
    return 365 * year + last // 4 - last // 100 + last // 400 + 1


def _millis_of(text: str) -> int:
    """Parse the text of a time without the calendar of the standard library's limits."""
    match = _FORM.fullmatch(text)
    assert match is not None, text
    sign, digits, *rest = match.groups()
    year = int(digits) * (-1 if sign == "-" else 1)
    month, day, hour, minute, second, fraction = (int(part or 0) for part in rest)
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    lengths = [31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    days = _days_before(year) + sum(lengths[: month - 1]) + day - 1 - _days_before(1970)
    return (((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000 + fraction


@given(millis=INT64)
@example(millis=-(1 << 63))
@example(millis=(1 << 63) - 1)
@example(millis=253_402_300_799_999)
@example(millis=253_402_300_800_000)
@example(millis=-62_135_596_800_001)
def test_the_text_of_every_int64_is_that_time(millis: int) -> None:
    text = time_text(millis)
    assert _millis_of(text) == millis
    assert date_text(millis) == text.partition("T")[0]
    assert text.partition("T")[2].startswith(clock_text(millis, seconds=True))


@given(st.datetimes(timezones=st.just(UTC)))
def test_in_four_digit_years_the_text_is_that_of_the_standard_library(time: datetime) -> None:
    millis = (time - _EPOCH) // timedelta(milliseconds=1)
    assert datetime.fromisoformat(time_text(millis)) == _EPOCH + timedelta(milliseconds=millis)


@pytest.mark.parametrize(
    ("millis", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_795_683_600_123, "2026-11-26T09:00:00.123Z"),
        ((1 << 63) - 1, "+292278994-08-17T07:12:55.807Z"),
        (-(1 << 63), "-292275055-05-16T16:47:04.192Z"),
        (10**23, "after +999999999-12-31T23:59:59.999Z"),
        (-(10**40), "before -999999999-01-01T00:00:00Z"),
    ],
)
def test_times_are_written_as_java_writes_an_instant(millis: int, text: str) -> None:
    assert time_text(millis) == text


@given(millis=INT64)
def test_the_text_of_a_duration_is_cut_to_its_second_unit(millis: int) -> None:
    text = duration_text(millis)
    parts = re.findall(r"([\d.]+) (ms|s|min|h|d)\b", text)
    assert " ".join(f"{number} {unit}" for number, unit in parts) == text.removeprefix("-")
    shown = sum(round(1_000 * float(number)) * _UNITS[unit] // 1_000 for number, unit in parts)
    least = _RESOLUTION.get(parts[0][1], 100 if abs(millis) < 10_000 else 1_000)
    assert 0 <= abs(millis) - shown < least
    assert text.startswith("-") is (millis < 0)


@pytest.mark.parametrize(
    ("millis", "text"),
    [
        (0, "0 ms"),
        (250, "250 ms"),
        (4_500, "4.5 s"),
        (45_000, "45 s"),
        (90_000, "1 min 30 s"),
        (4_800_000, "1 h 20 min"),
        (86_400_000, "24 h"),
        (365 * 86_400_000, "365 d"),
        (-45_000, "-45 s"),
    ],
)
def test_durations(millis: int, text: str) -> None:
    assert duration_text(millis) == text
    assert seconds_text(millis / 1_000) == text


def test_warnings_that_differ_only_in_a_duration_are_one_kind() -> None:
    repeats = RepeatFilter(lambda: 0.0)
    lines = [
        logging.LogRecord("spark_ssp", logging.WARNING, "", 0, "for %s", (text,), None)
        for text in (duration_text(1), duration_text(2), time_text(3))
    ]
    assert [repeats.filter(line) for line in lines] == [True, False, False]
