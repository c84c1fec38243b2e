"""The grammar of `startingPosition`."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.options.spec import BadValueError, Fault
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
from spark_ssp.kinesis_source.options.starting_position import parse_start, resolve_start

S0, S1, S2 = (f"shardId-00000000000{number}" for number in range(3))
ORDERS, PAYMENTS = StreamName("orders"), StreamName("payments")
NEW_YEAR = AtTimestamp(millis=EpochMillis(1_767_225_600_000))
NOW_MS = NEW_YEAR.millis + 86_400_000
DIGITS = "49590338271490256608559692538361571095921575989136588898"


def start(value: object, *streams: StreamName, deaggregate: bool = True) -> StartingPosition:
    text = value if isinstance(value, str) else json.dumps(value)
    return resolve_start(parse_start(text), streams or (ORDERS,), NOW_MS, deaggregate=deaggregate)


def faults(value: object, *streams: StreamName) -> tuple[Fault, ...]:
    with pytest.raises(BadValueError) as caught:
        start(value, *streams)
    return caught.value.faults


def key(shard: str, stream: StreamName = ORDERS) -> ShardKey:
    return ShardKey(stream=stream, shard=ShardId(shard))


@pytest.mark.parametrize(
    ("value", "point"),
    [
        ("latest", Latest()),
        ("LATEST", Latest()),
        ("trim_horizon", TrimHorizon()),
        ("EARLIEST", TrimHorizon()),
        ("at_timestamp 2026-01-01T00:00:00Z", NEW_YEAR),
        ("AT_TIMESTAMP 2025-12-31T16:00:00-08:00", NEW_YEAR),
        ("at_timestamp:2026-01-01T00:00:00Z", NEW_YEAR),
        ("at_timestamp = 1767225600000", NEW_YEAR),
        ("at_timestamp 2026-01-01T00:00:00.000999Z", NEW_YEAR),
        ({"at_timestamp": "2026-01-01T01:00:00+01:00"}, NEW_YEAR),
        ({"at_timestamp": 1767225600000}, NEW_YEAR),
        ({"at_timestamp": "1767225600000"}, NEW_YEAR),
        ({"at_timestamp": "01/01/2026 00:00 UTC", "format": "MM/dd/yyyy HH:mm z"}, NEW_YEAR),
        ({"default": "trim_horizon"}, TrimHorizon()),
        ({"default": {"at_timestamp": "2026-01-01T00:00:00Z"}}, NEW_YEAR),
        ("-24h", NEW_YEAR),
        ("-1 day", NEW_YEAR),
        ("at_timestamp -24h", NEW_YEAR),
        ({"default": "-86400s"}, NEW_YEAR),
        ({"at_timestamp": "-1440m"}, NEW_YEAR),
    ],
)
def test_one_start_for_all_shards(value: object, point: StartPoint) -> None:
    assert start(value) == StartingPosition(default=point)
    assert start(value, ORDERS, PAYMENTS) == StartingPosition(default=point)


@pytest.mark.parametrize("deaggregate", [True, False])
def test_a_start_by_shard(deaggregate: bool) -> None:
    """Without splitting, a record is read as a whole, or not."""
    assert start(
        {
            S0: "trim_horizon",
            S1: {"after_sequence_number": DIGITS, "sub_sequence_number": 3},
            S2: {"after_sequence_number": "0"},
            "default": "latest",
        },
        deaggregate=deaggregate,
    ) == StartingPosition(
        default=Latest(),
        by_shard={
            key(S0): TrimHorizon(),
            key(S1): AfterRecord(sequence_number=SequenceNumber(DIGITS), sub=3),
            key(S2): AfterRecord(
                sequence_number=SequenceNumber("0"), sub=0 if deaggregate else WHOLE_RECORD
            ),
        },
    )


def test_without_a_default_there_is_none() -> None:
    assert start({S0: "latest"}).default is None


def test_a_start_by_stream_and_shard() -> None:
    value = {"payments": {S1: "latest"}, "orders": {S0: "earliest"}, "default": "latest"}
    assert start(value, ORDERS, PAYMENTS) == StartingPosition(
        default=Latest(),
        by_shard={key(S0): TrimHorizon(), key(S1, PAYMENTS): Latest()},
    )
    assert start({"orders": {S0: "earliest"}}).by_shard == {key(S0): TrimHorizon()}


@pytest.mark.parametrize(
    ("text", "found", "next_step"),
    [
        ("lates", "'lates'", "did you mean latest?"),
        ("TRIM-HORIZON", "'TRIM-HORIZON'", "did you mean trim_horizon?"),
        ("2026-01-01T00:00:00Z", "'2026-", "write at_timestamp 2026-01-01T00:00:00Z"),
        ("at_timestamp", "without a time", "write at_timestamp"),
        ("at_timestamp:", "without a time", "write at_timestamp"),
        ("at_timestamp yesterday", "'yesterday'", "write it like"),
        ("at_timestamp 2026-01-01T00:00:00", "no zone", "add the offset"),
        ("at_timestamp 2026-01-01", "no zone", "add the offset"),
        ("at_timestamp 1767225600", "before 1973", "by 1000"),
        ("at_timestamp 1767225600000000", "after the year 5000", "milliseconds"),
        ("at_timestamp 1767225600.5", "'1767225600.5'", "write it like"),
        ("-24", "no unit", "-24h"),
        ("-yesterday", "'-yesterday'", "-24h"),
        ("at_timestamp -99999d", "'-99999d'", "trim_horizon"),
        ("at_timestamp 0001-01-01T00:00:00+14:00", "before 1973", "trim_horizon"),
        ("at_timestamp 9999-12-31T23:59:59-14:00", "after the year 5000", "milliseconds"),
        ("{", "not", "compare with"),
        ("{}", "{}", "name a shard"),
        ('{"default": "latest"', "not", "compare with"),
        ("{" * 100_000, "not", "compare with"),
        ('{"a":' * 100_000, "not", "compare with"),
        ('{"at_timestamp": ' + "9" * 5_000 + "}", "not", "compare with"),
        ('{"at_timestamp": 1e3}', "neither text nor", "quotes"),
        ('{"at_timestamp": true}', "neither text nor", "quotes"),
        ('{"at_timestamp": 1, "format": "yyyy"}', "not text", "both in quotes"),
        ('{"at_timestamp": 5}', "'5', which is before 1973", "1000"),
        ('{"at_timestamp": "26", "format": "yy X"}', "yy is not supported", "ISO 8601"),
        ('{"at_timestamp": "x", "shardId-0": "latest"}', "at_timestamp, shardId-0", "one of"),
        ('{"format": "yyyy"}', "format", "one of"),
    ],
)
def test_what_is_wrong_with_the_text(text: str, found: str, next_step: str) -> None:
    (fault,) = faults(text)
    assert found in fault.found
    assert next_step in fault.next_step


@pytest.mark.parametrize(
    ("point", "found", "next_step"),
    [
        (None, "neither text nor an object", "one of the expected"),
        (["latest"], "neither text nor an object", "one of the expected"),
        ("shard_end", "'shard_end'", "at_timestamp"),
        ({}, "{}", "one of the expected"),
        ({"after_sequence_number": 49}, "not digits in quotes", "in quotes"),
        ({"after_sequence_number": "049"}, "not digits in quotes", "in quotes"),
        ({"after_sequence_number": "x"}, "not digits in quotes", "in quotes"),
        ({"after_sequence_number": "1" * 130}, "not digits in quotes", "in full"),
        ({"after_sequence_number": "1", "sub_sequence_number": -1}, "not a whole", "remove it"),
        ({"after_sequence_number": "1", "sub_sequence_number": "1"}, "not a whole", "remove it"),
        ({"after_sequence_number": "1", "sub_sequence_number": True}, "not a whole", "remove it"),
        ({"after_sequence_number": "1", "sub_sequence_number": None}, "not a whole", "remove it"),
        ({"sub_sequence_number": 1}, "sub_sequence_number", "one of the expected"),
        ({"at_sequence_number": "1"}, "at_sequence_number", "after_sequence_number"),
        (
            {"iteratorType": "AFTER_SEQUENCE_NUMBER", "iteratorPosition": "1"},
            "as awslabs' connector writes it",
            "after_sequence_number",
        ),
    ],
)
def test_what_is_wrong_with_one_shard(point: object, found: str, next_step: str) -> None:
    (fault,) = faults({S0: point})
    assert fault.found.startswith(f"at '{S0}': ")
    assert found in fault.found
    assert next_step in fault.next_step
    (nested,) = faults({"orders": {S0: point}})
    assert nested.found.startswith(f"at 'orders/{S0}': ")


@pytest.mark.parametrize(
    ("value", "found", "next_step"),
    [
        ({S0: "latest"}, "a map by shard for 2 streams", 'write {"orders": {"shardId-…": …}'),
        ({"order": {S0: "latest"}}, "the stream 'order'", "did you mean orders?"),
        ({"clicks": {S0: "latest"}}, "the stream 'clicks'", "remove it"),
        ({"orders": "latest"}, "'orders' without a map", '"default"'),
        ({"orders": {"default": "latest"}}, "'default' in 'orders'", "at the top"),
        ({"orders": {"shard": "latest"}}, "'shard' in 'orders'", "ListShards"),
        ({S0: "latest", "orders": {S0: "latest"}}, "shards and streams", "inside their stream"),
        ({"defualt": "latest"}, "'defualt' without a map", '"default"'),
    ],
)
def test_what_is_wrong_with_a_map_for_two_streams(
    value: object, found: str, next_step: str
) -> None:
    fault = faults(value, ORDERS, PAYMENTS)[0]
    assert found in fault.found
    assert next_step in fault.next_step


@pytest.mark.parametrize(
    "text",
    [
        f'{{"{S0}": "latest", "{S0}": "latest"}}',
        '{"default": "latest", "default": "latest"}',
        f'{{"orders": {{"{S0}": "latest", "{S0}": "latest"}}}}',
        f'{{"{S0}": {{"after_sequence_number": "1", "after_sequence_number": "2"}}}}',
        '{"at_timestamp": 1767225600000, "at_timestamp": 1767225600000}',
    ],
)
def test_a_name_given_twice_is_an_error(text: str) -> None:
    (fault,) = faults(text)
    assert "twice" in fault.found


def test_every_fault_is_reported() -> None:
    found = [
        fault.found
        for fault in faults({S0: "soon", S1: 5, "orders": {"x": 1, S2: None}, "default": "now"})
    ]
    assert len(found) == 5
    assert [text.split(":")[0] for text in found] == [
        f"at '{S0}'",
        f"at '{S1}'",
        "'x' in 'orders'",
        f"at 'orders/{S2}'",
        "at 'default'",
    ]


NAMES = st.sampled_from([S0, S1, "orders", "default", "at_timestamp", "format"]) | st.text()
NAMES |= st.sampled_from(["after_sequence_number", "sub_sequence_number"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("latest")
VALUES = st.recursive(
    LEAVES, lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
) | st.lists(LEAVES, max_size=2)


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_no_json_raises_anything_else(value: dict[str, Any]) -> None:
    with suppress(BadValueError):
        assert isinstance(start(value, ORDERS, PAYMENTS), StartingPosition)


@given(st.text() | st.text().map("at_timestamp {}".format) | st.text().map("{{{}".format))
def test_no_text_raises_anything_else(text: str) -> None:
    with suppress(BadValueError):
        assert isinstance(start(text), StartingPosition)


@given(st.datetimes(timezones=st.timezones()))
def test_any_time_with_an_offset_is_understood_or_refused(moment: Any) -> None:
    with suppress(BadValueError):
        point = start(f"at_timestamp {moment.isoformat()}").default
        assert isinstance(point, AtTimestamp)
        assert 0 <= moment.timestamp() * 1000 - point.millis < 2
