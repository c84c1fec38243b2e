"""The text of times and durations, in every log line, error, page and output of a command.
Documents for programs (offsets, JSON, metrics) keep numbers. A test of the architecture forbids
other ways to write a time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - every time here is UTC
_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR

_CYCLE_DAYS: Final = 146_097
_CYCLE_YEARS: Final = 400
"""The Gregorian calendar repeats itself after this time: each year is written through one of the
years 1970 to 2369."""
_LAST_YEAR: Final = 999_999_999
_LAST: Final = f"+{_LAST_YEAR}-12-31T23:59:59.999Z"
_FIRST: Final = f"-{_LAST_YEAR}-01-01T00:00:00Z"


class Quantity(str):
    """The text of a number. As an argument of a log line it does not make the line another kind,
    as a number does not (`spark_ssp.common.logs`)."""

    __slots__ = ()


def time_text(millis: int) -> Quantity:
    """Return a time in epoch milliseconds as ISO 8601 in UTC, with milliseconds if there are any.

    Total: years outside of 0 to 9999 have a sign, as ISO 8601 and Java's Instant write them
    (`+292278994-08-17T07:12:55.807Z`, the last time of an int64); beyond a billion years, the text
    is the limit and on which side of it the time is.
    """
    days, rest = divmod(millis, _DAY)
    cycles, day = divmod(days, _CYCLE_DAYS)
    moment = _EPOCH + timedelta(days=day, milliseconds=rest)
    year = moment.year + cycles * _CYCLE_YEARS
    if year > _LAST_YEAR:
        return Quantity(f"after {_LAST}")
    if year < -_LAST_YEAR:
        return Quantity(f"before {_FIRST}")
    sign = "-" if year < 0 else "+" if year > 9_999 else ""
    precision = "milliseconds" if rest % _SECOND else "seconds"
    return Quantity(f"{sign}{abs(year):04}{moment.isoformat(timespec=precision)[4:]}Z")


def date_text(millis: int) -> str:
    """Return the date of a time in epoch milliseconds, in UTC."""
    return time_text(millis).partition("T")[0]


def clock_text(millis: int, *, seconds: bool = False) -> str:
    """Return the time of day of a time in epoch milliseconds, in UTC: `09:00` or `09:00:30`."""
    return time_text(millis % _DAY)[11 : 19 if seconds else 16]


def duration_text(millis: int) -> Quantity:
    """Return a duration in milliseconds in its two largest units, the rest cut: `1 h 20 min`, `2 d
    3 h`. Below a minute it has one unit, with a decimal below ten seconds: `45 s`, `4.5 s`,
    `250 ms`. Days begin at 48 hours."""
    sign, length = ("-", -millis) if millis < 0 else ("", millis)
    return Quantity(sign + _length_text(length))


def seconds_text(seconds: float) -> Quantity:
    """Return the text of a duration in seconds, as `duration_text` does."""
    return duration_text(round(seconds * _SECOND))


def _length_text(millis: int) -> str:
    if millis < _SECOND:
        return f"{millis} ms"
    if millis < 10 * _SECOND:
        whole, tenths = divmod(millis // 100, 10)
        return f"{whole}.{tenths} s" if tenths else f"{whole} s"
    if millis < _MINUTE:
        return f"{millis // _SECOND} s"
    if millis < _HOUR:
        return _in_units(millis, _MINUTE, "min", _SECOND, "s")
    if millis < 48 * _HOUR:
        return _in_units(millis, _HOUR, "h", _MINUTE, "min")
    return _in_units(millis, _DAY, "d", _HOUR, "h")


def _in_units(millis: int, large: int, large_unit: str, small: int, small_unit: str) -> str:
    whole, rest = divmod(millis, large)
    parts = rest // small
    return f"{whole} {large_unit}" + (f" {parts} {small_unit}" if parts else "")
