"""The options `startingPosition` and `endingPosition`: grammar, and meaning for given streams.

    start     = "latest" | "trim_horizon" | "earliest" | "at_timestamp" time | map
    map       = {shard id: point, …, "default": point}                 (one stream)
              | {stream: {shard id: point, …}, …, "default": point}
    point     = "latest" | "trim_horizon" | "earliest" | "at_timestamp" time
              | {"at_timestamp": time, "format": Java date pattern (optional)}
              | {"after_sequence_number": digits, "sub_sequence_number": integer (optional)}
    time      = ISO 8601 with a zone | milliseconds since 1970

The case of words does not matter. The whole option may also be one point in JSON. `parse_start`
parses the text; `resolve_start` adds the streams. A time ahead of the service's clock is handled by
the planner.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from spark_ssp.common.errors import shown
from spark_ssp.common.options.spec import BadValueError, Fault, closest
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
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
from spark_ssp.kinesis_source.options.java_date_format import parse_java_time

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

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_EXPECTED: Final = "latest, trim_horizon, at_timestamp <time>, or a JSON object by shard"
_EXPECTED_POINT: Final = (
    'latest, trim_horizon, at_timestamp <time>, {"at_timestamp": <time>} or '
    '{"after_sequence_number": "<digits>"}'
)
_EXPECTED_TIME: Final = "ISO 8601 with a zone, or milliseconds since 1970"
_POINT_KEYS: Final = frozenset(
    {"at_timestamp", "format", "after_sequence_number", "sub_sequence_number"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedStart:
    """The parsed text, without the query's streams. The stream is None in `by_shard` if the map is
    only by shard."""

    default: StartPoint | None
    by_shard: Mapping[tuple[StreamName | None, ShardId], StartPoint] = field(default_factory=dict)
    streams: tuple[StreamName, ...] = ()
    """The streams that the map names, in its order."""


# --- With the streams known ----------------------------------------------------------------------


def resolve_start(parsed: ParsedStart, streams: Sequence[StreamName]) -> StartingPosition:
    """Return the start for these streams (at least one). Raises BadValueError for a mismatch."""
    faults = list(_stream_faults(parsed, streams))
    if faults:
        raise BadValueError(*faults)
    return StartingPosition(
        default=parsed.default,
        by_shard={
            ShardKey(stream=stream or streams[0], shard=shard): point
            for (stream, shard), point in parsed.by_shard.items()
        },
    )


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
                expected='latest, at_timestamp <time>, {"at_timestamp": <time>} or '
                '{"after_sequence_number": "<digits>"}',
                next_step="write latest to read up to the latest record",
            )
        )
    return parsed


def _parse_word(text: str, expected: str) -> StartPoint:
    point = _WORDS.get(text.lower())
    if point is not None:
        return point
    at_timestamp = _AT_TIMESTAMP.fullmatch(text)
    if at_timestamp is not None:
        return AtTimestamp(millis=_parse_time(at_timestamp[1].strip()))
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
    default: StartPoint | None = None
    by_shard: dict[tuple[StreamName | None, ShardId], StartPoint] = {}
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


def _parse_stream(stream: str, value: object) -> list[tuple[ShardId, StartPoint]]:
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
    points: list[tuple[ShardId, StartPoint]] = []
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


def _parse_point(value: object, place: str) -> StartPoint:
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


def _parse_object(fields: Mapping[str, object]) -> StartPoint:
    names = frozenset(fields)
    if "at_timestamp" in names and names <= {"at_timestamp", "format"}:
        return AtTimestamp(millis=_parse_json_time(fields["at_timestamp"], fields.get("format")))
    if "after_sequence_number" in names and names <= {
        "after_sequence_number",
        "sub_sequence_number",
    }:
        return _parse_after(fields["after_sequence_number"], fields.get("sub_sequence_number", 0))
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


def _parse_after(sequence_number: object, sub: object) -> AfterRecord:
    if not isinstance(sequence_number, str) or not _SEQUENCE_NUMBER.fullmatch(sequence_number):
        raise BadValueError(
            Fault(
                found="an after_sequence_number that is not digits in quotes",
                expected='a sequence number of the service, such as "4968…"',
                next_step="copy it in full and put it in quotes",
            )
        )
    if isinstance(sub, bool) or not isinstance(sub, int) or not 0 <= sub < 1 << 63:
        raise BadValueError(
            Fault(
                found="a sub_sequence_number that is not a whole number of 0 or more",
                expected="the index of a user record within its aggregated record",
                next_step="remove it for records that are not aggregated",
            )
        )
    return AfterRecord(sequence_number=SequenceNumber(sequence_number), sub=sub)


# --- Times ---------------------------------------------------------------------------------------


def _parse_json_time(value: object, pattern: object) -> EpochMillis:
    if pattern is not None:
        if not isinstance(pattern, str) or not isinstance(value, str):
            raise _no_time("a time or format that is not text", "put both in quotes")
        return _checked(_to_millis(parse_java_time(value.strip(), pattern)), shown(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return _checked(value, shown(str(value)))
    if isinstance(value, str):
        return _parse_time(value.strip())
    raise _no_time("at_timestamp with neither text nor a whole number", "write it in quotes")


def _parse_time(text: str) -> EpochMillis:
    if not text:
        raise _no_time("at_timestamp without a time", "write at_timestamp 2026-01-01T00:00:00Z")
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


def _to_millis(time: datetime) -> int:
    """Convert to milliseconds, rounded down so that no record of the millisecond is missed."""
    return (time - _EPOCH) // timedelta(milliseconds=1)


def _checked(millis: int, found: str) -> EpochMillis:
    if millis < _EARLIEST_MS:
        raise _no_time(
            f"{found}, which is before 1973",
            "multiply a time in seconds by 1000; for all records, use trim_horizon",
        )
    if millis > _LATEST_MS:
        raise _no_time(f"{found}, which is after the year 5000", "use milliseconds")
    return EpochMillis(millis)


def _no_time(found: str, next_step: str) -> BadValueError:
    return BadValueError(Fault(found=found, expected=_EXPECTED_TIME, next_step=next_step))
