"""The options `startingPosition` and `endingPosition`: grammar, and meaning for given streams.

    start     = "latest" | "trim_horizon" | "earliest" | "at_timestamp" time | before | map
    map       = {shard id: point, …, "default": point}                 (one stream)
              | {stream: {shard id: point, …}, …, "default": point}
    point     = "latest" | "trim_horizon" | "earliest" | "at_timestamp" time | before
              | {"at_timestamp": time, "format": Java date pattern (optional)}
              | {"after_sequence_number": digits, "sub_sequence_number": integer (optional)}
    time      = ISO 8601 with a zone | milliseconds since 1970 | before
    before    = "-" duration, as -24h: so long before the query's start

The case of words does not matter. The whole option may also be one point in JSON. `parse_start`
parses the text; `resolve_start` adds the streams and the present time. A time ahead of the
service's clock is handled by the planner.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

from spark_ssp.common.errors import shown
from spark_ssp.common.options.spec import BadValueError, Fault, closest
from spark_ssp.common.options.values import parse_duration
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.model.deaggregation import WHOLE_RECORD
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Latest,
    SequenceNumber,
    StartingPosition,
    StartPoint,
    TrimHorizon,
)

_WORDS: Final[Mapping[str, StartPoint]] = {
    "latest": Latest(),
    "trim_horizon": TrimHorizon(),
    "earliest": TrimHorizon(),
}

_AT_TIMESTAMP: Final = re.compile(r"at_timestamp(?:\s*[:=]\s*|\s+|$)(.*)", re.IGNORECASE | re.S)
_SHARD_ID: Final = re.compile(r"shardId-[0-9]{1,19}")
_SEQUENCE_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,128}")
"""GetShardIterator's StartingSequenceNumber, Kinesis API reference."""

_EARLIEST_MS: Final = 100_000_000_000
"""March 1973. A present time in seconds, read as milliseconds, is earlier."""
_LATEST_MS: Final = 100_000_000_000_000
"""The year 5138. A time in microseconds is later."""

_LONGEST_BEFORE_MS: Final = 3650 * 86_400_000
"""Ten times Kinesis' longest retention."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_EXPECTED: Final = "latest, trim_horizon, at_timestamp <time>, -24h, or a JSON object by shard"
_EXPECTED_POINT: Final = (
    'latest, trim_horizon, at_timestamp <time>, -24h, {"at_timestamp": <time>} or '
    '{"after_sequence_number": "<digits>"}'
)
_EXPECTED_TIME: Final = (
    "ISO 8601 with a zone, milliseconds since 1970, or a duration before now such as -24h"
)
_POINT_KEYS: Final = frozenset(
    {"at_timestamp", "format", "after_sequence_number", "sub_sequence_number"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """A time so many milliseconds before the query's start."""

    millis: int


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """After a record without the number of a user record: after its first one if records are split,
    otherwise after all of it."""

    sequence_number: SequenceNumber


ParsedPoint = StartPoint | Before | After


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedStart:
    """The parsed text, without the query's streams. The stream is None in `by_shard` if the map is
    only by shard."""

    default: ParsedPoint | None
    by_shard: Mapping[tuple[StreamName | None, ShardId], ParsedPoint] = field(default_factory=dict)
    streams: tuple[StreamName, ...] = ()
    """The streams that the map names, in its order."""


# --- With the streams known ----------------------------------------------------------------------


def resolve_start(
    parsed: ParsedStart, streams: Sequence[StreamName], now_ms: int, *, deaggregate: bool
) -> StartingPosition:
    """Return the start for these streams (at least one) in a query that splits aggregated records,
    or does not. Raises BadValueError for a mismatch."""
    faults = list(_stream_faults(parsed, streams))
    if faults:
        raise BadValueError(*faults)
    return StartingPosition(
        default=default_start(parsed, now_ms, deaggregate=deaggregate),
        by_shard={
            ShardKey(stream=stream or streams[0], shard=shard): _resolved(
                point, now_ms, deaggregate=deaggregate
            )
            for (stream, shard), point in parsed.by_shard.items()
        },
    )


def default_start(parsed: ParsedStart, now_ms: int, *, deaggregate: bool) -> StartPoint | None:
    """Return the start of shards that the option does not name."""
    if parsed.default is None:
        return None
    return _resolved(parsed.default, now_ms, deaggregate=deaggregate)


def _resolved(point: ParsedPoint, now_ms: int, *, deaggregate: bool) -> StartPoint:
    match point:
        case Before(millis=millis):
            return AtTimestamp(millis=EpochMillis(now_ms - millis), is_relative=True)
        case After(sequence_number=number):
            return AfterRecord(sequence_number=number, sub=0 if deaggregate else WHOLE_RECORD)
    return point


def _stream_faults(parsed: ParsedStart, streams: Sequence[StreamName]) -> Iterator[Fault]:
    if len(streams) > 1 and any(stream is None for stream, _ in parsed.by_shard):
        yield Fault(
            found=f"a map by shard for {len(streams)} streams",
            expected="a map by stream, then by shard",
            next_step=f'write {{"{streams[0]}": {{"shardId-…": …}}, "default": …}}',
        )
    for stream in parsed.streams:
        if stream not in streams:
            suggestion = closest(stream, {name: name for name in streams})
            yield Fault(
                found=f"the stream {shown(stream)}, which this query does not read",
                expected=f"streams among {', '.join(streams)}",
                next_step=f"did you mean {suggestion}?" if suggestion else "remove it",
            )


# --- The text ------------------------------------------------------------------------------------


def parse_start(text: str) -> ParsedStart:
    """Parse the option's text (stripped, not empty); raises BadValueError with every fault."""
    if text.startswith("{"):
        return _parse_document(_load(text))
    return ParsedStart(default=_parse_word(text, _EXPECTED))


def parse_end(text: str) -> ParsedStart:
    """Parse the text of `endingPosition`: a start, except that nothing ends at the oldest
    record."""
    parsed = parse_start(text)
    points = (parsed.default, *parsed.by_shard.values())
    if any(isinstance(point, TrimHorizon) for point in points):
        raise BadValueError(
            Fault(
                found="trim_horizon as an end",
                expected='latest, at_timestamp <time>, -1h, {"at_timestamp": <time>} or '
                '{"after_sequence_number": "<digits>"}',
                next_step="write latest to read up to the latest record",
            )
        )
    return parsed


def _parse_word(text: str, expected: str) -> ParsedPoint:
    point = _WORDS.get(text.lower())
    if point is not None:
        return point
    if text.startswith("-"):
        return _parse_before(text)
    at_timestamp = _AT_TIMESTAMP.fullmatch(text)
    if at_timestamp is not None:
        return _parse_time(at_timestamp[1].strip())
    suggestion = closest(text, {word: word for word in _WORDS})
    if suggestion:
        next_step = f"did you mean {suggestion}?"
    else:
        next_step = "for a time, write at_timestamp 2026-01-01T00:00:00Z"
    raise BadValueError(Fault(found=shown(text), expected=expected, next_step=next_step))


class _Pairs(tuple[tuple[str, object], ...]):
    """A JSON object, its names possibly repeated."""


def _load(text: str) -> _Pairs:
    try:
        document = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        raise _malformed("text that begins like JSON but is not") from None
    if not isinstance(document, _Pairs):
        raise _malformed("JSON that is not an object")
    return document


def _malformed(found: str) -> BadValueError:
    return BadValueError(
        Fault(
            found=found,
            expected=_EXPECTED,
            next_step='compare with {"shardId-000000000000": "trim_horizon", "default": "latest"}',
        )
    )


def _parse_document(document: _Pairs) -> ParsedStart:
    if any(name in _POINT_KEYS for name, _ in document):
        return ParsedStart(default=_parse_point(document, ""))
    faults = _repetitions(document, "")
    default: ParsedPoint | None = None
    by_shard: dict[tuple[StreamName | None, ShardId], ParsedPoint] = {}
    streams: list[StreamName] = []
    for name, value in document:
        try:
            if name == "default":
                default = _parse_point(value, name)
            elif _SHARD_ID.fullmatch(name):
                by_shard[None, ShardId(name)] = _parse_point(value, name)
            else:
                stream = StreamName(name)
                streams.append(stream)
                for shard, point in _parse_stream(name, value):
                    by_shard[stream, shard] = point
        except BadValueError as error:
            faults.extend(error.faults)
    if streams and any(stream is None for stream, _ in by_shard):
        faults.append(_mixed())
    if not document:
        faults.append(Fault(found="{}", expected=_EXPECTED, next_step="name a shard or a default"))
    if faults:
        raise BadValueError(*faults)
    return ParsedStart(default=default, by_shard=by_shard, streams=tuple(streams))


def _mixed() -> Fault:
    return Fault(
        found="shards and streams on one level",
        expected="a map by shard, or one by stream and then by shard",
        next_step="put the shards inside their stream",
    )


def _parse_stream(stream: str, value: object) -> list[tuple[ShardId, ParsedPoint]]:
    """Parse the map of one stream; raises BadValueError with every fault."""
    if not isinstance(value, _Pairs):
        raise BadValueError(
            Fault(
                found=f"{shown(stream)} without a map of shards",
                expected='shard ids (shardId-…), "default", or streams with a map of shards each',
                next_step='write "default" for the start of several shards',
            )
        )
    faults = _repetitions(value, stream)
    points: list[tuple[ShardId, ParsedPoint]] = []
    for name, entry in value:
        if not _SHARD_ID.fullmatch(name):
            faults.append(
                Fault(
                    found=f"{shown(name)} in {shown(stream)}",
                    expected="shard ids (shardId-…)",
                    next_step='there is one "default", at the top, for all streams'
                    if name == "default"
                    else "use the ids that ListShards returns",
                )
            )
            continue
        try:
            points.append((ShardId(name), _parse_point(entry, f"{stream}/{name}")))
        except BadValueError as error:
            faults.extend(error.faults)
    if faults:
        raise BadValueError(*faults)
    return points


def _repetitions(document: _Pairs, place: str) -> list[Fault]:
    names = [name for name, _ in document]
    return [
        _at(place, Fault(found=f"{shown(name)} twice", expected="each name once", next_step=_ONCE))
        for name in sorted(set(names))
        if names.count(name) > 1
    ]


_ONCE: Final = "remove the repetition"


# --- One point -----------------------------------------------------------------------------------


def _parse_point(value: object, place: str) -> ParsedPoint:
    """Parse a start point in JSON, found at `place` (empty: the option's whole value)."""
    try:
        if isinstance(value, str):
            return _parse_word(value.strip(), _EXPECTED_POINT)
        if isinstance(value, _Pairs):
            faults = _repetitions(value, "")
            if faults:
                raise BadValueError(*faults)
            return _parse_object(dict(value))
        raise _no_point("a value that is neither text nor an object")
    except BadValueError as error:
        raise BadValueError(*(_at(place, fault) for fault in error.faults)) from None


def _at(place: str, fault: Fault) -> Fault:
    if not place:
        return fault
    return Fault(
        found=f"at {shown(place)}: {fault.found}",
        expected=fault.expected,
        next_step=fault.next_step,
    )


def _no_point(found: str, next_step: str = "write one of the expected values") -> BadValueError:
    return BadValueError(Fault(found=found, expected=_EXPECTED_POINT, next_step=next_step))


def _parse_object(fields: Mapping[str, object]) -> ParsedPoint:
    names = frozenset(fields)
    if "at_timestamp" in names and names <= {"at_timestamp", "format"}:
        return _parse_json_time(fields["at_timestamp"], fields.get("format"))
    if "after_sequence_number" in names and names <= {
        "after_sequence_number",
        "sub_sequence_number",
    }:
        return _parse_after(**fields)
    if "at_sequence_number" in names:
        raise _no_point(
            "at_sequence_number, which is not supported",
            "name the record before it with after_sequence_number, or a time",
        )
    if "iteratorType" in names:
        raise _no_point(
            "a position as awslabs' connector writes it",
            'write AFTER_SEQUENCE_NUMBER as {"after_sequence_number": "<iteratorPosition>", '
            '"sub_sequence_number": <subSequenceNumber, unless it is -1>}',
        )
    raise _no_point(f"an object of {shown(', '.join(sorted(names)))}" if names else "{}")


_UNNAMED: Final = object()


def _parse_after(
    after_sequence_number: object, sub_sequence_number: object = _UNNAMED
) -> ParsedPoint:
    number, sub = after_sequence_number, sub_sequence_number
    if not isinstance(number, str) or not _SEQUENCE_NUMBER.fullmatch(number):
        raise BadValueError(
            Fault(
                found="an after_sequence_number that is not digits in quotes",
                expected='a sequence number of the service, such as "4968…"',
                next_step="copy it in full and put it in quotes",
            )
        )
    if sub is _UNNAMED:
        return After(sequence_number=SequenceNumber(number))
    if isinstance(sub, bool) or not isinstance(sub, int) or not 0 <= sub < 1 << 63:
        raise BadValueError(
            Fault(
                found="a sub_sequence_number that is not a whole number of 0 or more",
                expected="the index of a user record within its aggregated record",
                next_step="remove it for records that are not aggregated",
            )
        )
    return AfterRecord(sequence_number=SequenceNumber(number), sub=sub)


# --- Times ---------------------------------------------------------------------------------------


def _parse_json_time(value: object, pattern: object) -> ParsedPoint:
    if pattern is not None:
        if not isinstance(pattern, str) or not isinstance(value, str):
            raise _no_time("a time or format that is not text", "put both in quotes")
        return _checked(_to_millis(parse_java_time(value.strip(), pattern)), shown(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return _checked(value, shown(str(value)))
    if isinstance(value, str):
        return _parse_time(value.strip())
    raise _no_time("at_timestamp with neither text nor a whole number", "write it in quotes")


def _parse_time(text: str) -> ParsedPoint:
    if not text:
        raise _no_time("at_timestamp without a time", "write at_timestamp 2026-01-01T00:00:00Z")
    if text.startswith("-"):
        return _parse_before(text)
    if re.fullmatch(r"[0-9]{1,18}", text):
        return _checked(int(text), shown(text))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise _no_time(shown(text), "write it like 2026-01-01T00:00:00Z") from None
    if time.tzinfo is None:
        raise _no_time(
            f"{shown(text)}, which has no zone",
            "add the offset: Z for UTC, or for instance +02:00",
        )
    return _checked(_to_millis(time), shown(text))


def _parse_before(text: str) -> Before:
    """Parse a duration before now. The unit is required: a number alone is a time."""
    try:
        millis = parse_duration(text[1:].strip())
    except BadValueError:
        raise _no_time(shown(text), "write a duration as -24h, -90m or -7d") from None
    if text[1:].strip().isdigit():
        raise _no_time(f"{shown(text)}, which has no unit", "add one: -24h, -90m or -7d")
    if millis > _LONGEST_BEFORE_MS:
        raise _no_time(shown(text), "write at most -3650d; trim_horizon is the oldest record")
    return Before(millis=millis)


def _to_millis(time: datetime) -> int:
    """Convert to milliseconds, rounded down so that no record of the millisecond is missed."""
    return (time - _EPOCH) // timedelta(milliseconds=1)


def _checked(millis: int, found: str) -> AtTimestamp:
    if millis < _EARLIEST_MS:
        raise _no_time(
            f"{found}, which is before 1973",
            "multiply a time in seconds by 1000; for all records, use trim_horizon",
        )
    if millis > _LATEST_MS:
        raise _no_time(f"{found}, which is after the year 5000", "use milliseconds")
    return AtTimestamp(millis=EpochMillis(millis))


def _no_time(found: str, next_step: str) -> BadValueError:
    return BadValueError(Fault(found=found, expected=_EXPECTED_TIME, next_step=next_step))


# --- Times in a Java date pattern, as in `initialPosition` of Databricks' source ------------------

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
    """Parse `text` by `pattern` into a time with its zone; raises BadValueError.

    The patterns of `SimpleDateFormat`, `DateTimeFormatter` and Joda agree on the letters accepted
    here; every other letter is refused. Supported are English month names, fixed offsets and the
    zone names with a fixed offset in RFC 822 (UT, GMT, EST to PDT); the machine's locale, zone and
    clock have no effect.
    """
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
