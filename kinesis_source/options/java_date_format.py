"""Parses times in a Java date pattern, as in `initialPosition` of Databricks' source.

The patterns of `SimpleDateFormat`, `DateTimeFormatter` and Joda agree on the letters accepted
here; every other letter is refused. Supported are English month names, fixed offsets and the zone
names with a fixed offset in RFC 822 (UT, GMT, EST to PDT); the machine's locale, zone and clock
have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Final

from spark_ssp.common.errors import shown
from spark_ssp.common.options.spec import BadValueError, Fault

_MONTHS: Final = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)

_ZONES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("Z", "UT", "UTC", "GMT"), 0),
    "EDT": -4,
    "EST": -5,
    "CDT": -5,
    "CST": -6,
    "MDT": -6,
    "MST": -7,
    "PDT": -7,
    "PST": -8,
}
"""Hours east of Greenwich; RFC 822, section 5."""

_FIELDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("yyyy", "uuuu"), r"(?P<year>[0-9]{4})"),
    "MMMM": rf"(?P<month_name>{'|'.join(_MONTHS)})",
    "MMM": rf"(?P<month_name>{'|'.join(name[:3] for name in _MONTHS)})",
    "MM": r"(?P<month>[0-9]{2})",
    "M": r"(?P<month>[0-9]{1,2})",
    "dd": r"(?P<day>[0-9]{2})",
    "d": r"(?P<day>[0-9]{1,2})",
    "HH": r"(?P<hour>[0-9]{2})",
    "H": r"(?P<hour>[0-9]{1,2})",
    "hh": r"(?P<half_hour>[0-9]{2})",
    "h": r"(?P<half_hour>[0-9]{1,2})",
    "a": r"(?P<half>AM|PM)",
    "mm": r"(?P<minute>[0-9]{2})",
    "m": r"(?P<minute>[0-9]{1,2})",
    "ss": r"(?P<second>[0-9]{2})",
    "s": r"(?P<second>[0-9]{1,2})",
    "SSS": r"(?P<millis>[0-9]{3})",
    **dict.fromkeys(
        ("z", "zz", "zzz", "Z", "ZZ", "ZZZ", "X", "XX", "XXX", "x", "xx", "xxx", "VV"),
        r"(?P<zone>[A-Za-z]{1,4}|(?:GMT|UTC)?[+-][0-9]{1,2}(?::?[0-9]{2})?)",
    ),
}

# A quoted literal, in which '' is one quote (as it is outside), a run of one letter, or any other.
_TOKEN: Final = re.compile(
    r"'(?P<quoted>(?:[^']|'')*)'|(?P<letter>[A-Za-z])(?P=letter)*|(?P<other>.)", re.DOTALL
)

_NEXT_STEP: Final = (
    "remove `format` and write the time as ISO 8601 with its offset, such as 2026-01-01T00:00:00Z"
)


def parse_java_time(text: str, pattern: str) -> datetime:
    """Parse `text` by `pattern` into a time with its zone; raises BadValueError."""
    match = re.fullmatch(_regex(pattern), text, re.IGNORECASE | re.ASCII)
    if match is None:
        raise _fault(f"{shown(text)}, which does not fit the format {shown(pattern)}")
    fields = {name: value for name, value in match.groupdict().items() if value is not None}
    try:
        return datetime(
            int(fields["year"]),
            _month(fields),
            int(fields["day"]),
            _hour(fields),
            int(fields.get("minute", 0)),
            int(fields.get("second", 0)),
            int(fields.get("millis", 0)) * 1000,
            tzinfo=_zone(fields["zone"]),
        )
    except BadValueError:
        raise
    except ValueError:
        raise _fault(f"{shown(text)}, which is not a time of the calendar") from None


def _regex(pattern: str) -> str:
    parts: list[str] = []
    seen: set[str] = set()
    for token in _TOKEN.finditer(pattern):
        if token["quoted"] is not None:
            parts.append(re.escape(token["quoted"].replace("''", "'") or "'"))
        elif token["other"] is not None:
            parts.append(re.escape(token["other"]))
        else:
            part = _FIELDS.get(token[0])
            name = part[4 : part.index(">")] if part else ""
            if part is None or name in seen:
                raise _fault(f"the format {shown(pattern)}, whose {token[0]} is not supported")
            seen.add(name)
            parts.append(part)
    _check_complete(pattern, seen)
    return "".join(parts)


def _check_complete(pattern: str, seen: set[str]) -> None:
    if "zone" not in seen:
        raise _fault(f"the format {shown(pattern)}, which has no zone")
    day_known = {"year", "day"} <= seen and len(seen & {"month", "month_name"}) == 1
    half_known = ("half" in seen) is ("half_hour" in seen) and not {"hour", "half_hour"} <= seen
    if not day_known or not half_known:
        raise _fault(f"the format {shown(pattern)}, which does not define one moment")


def _month(fields: Mapping[str, str]) -> int:
    if "month" in fields:
        return int(fields["month"])
    short = fields["month_name"].lower()[:3]
    return [name[:3] for name in _MONTHS].index(short) + 1


def _hour(fields: Mapping[str, str]) -> int:
    if "half_hour" not in fields:
        return int(fields.get("hour", 0))
    hour = int(fields["half_hour"])
    if not 1 <= hour <= 12:
        raise ValueError(hour)
    return hour % 12 + (12 if fields["half"].upper() == "PM" else 0)


def _zone(text: str) -> timezone:
    sign = max(text.find("+"), text.find("-"))
    if sign < 0:
        hours = _ZONES.get(text.upper())
        if hours is None:
            raise _fault(f"the zone {shown(text)}, whose offset is not fixed")
        return timezone(timedelta(hours=hours))
    digits = text[sign + 1 :].replace(":", "")
    # One or two digits are hours; three or four are hours and minutes.
    hours, minutes = (int(digits), 0) if len(digits) <= 2 else (int(digits[:-2]), int(digits[-2:]))
    if minutes > 59:
        raise ValueError(minutes)
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(-offset if text[sign] == "-" else offset)


def _fault(found: str) -> BadValueError:
    return BadValueError(
        Fault(
            found=found,
            expected="a time with its zone, and a format of yyyy, MM, dd, HH, mm, ss, SSS and Z",
            next_step=_NEXT_STEP,
        )
    )
