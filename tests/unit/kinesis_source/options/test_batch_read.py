"""The options of a batch read: what it adds, what it refuses, what has no effect."""

from __future__ import annotations

import logging

import pytest

from spark_ssp.kinesis_source.model.shard import AtTimestamp, EpochMillis, Latest, TrimHorizon
from spark_ssp.kinesis_source.options.parse import parse_at_load, parse_options
from spark_ssp.kinesis_source.options.values import InvalidOptionsError, KinesisOptions, QueryKind

SHARD = "shardId-000000000000"


def batch(**raw: str) -> KinesisOptions:
    return parse_options({"streamName": "orders", **raw}, QueryKind.BATCH)


def test_a_batch_read_is_of_the_whole_stream_by_default() -> None:
    options = batch()
    assert options.starting_position.default == TrimHorizon()
    assert options.ending_position is not None
    assert options.ending_position.default == Latest()
    assert options.max_records is None


def test_an_end_and_a_limit_reach_their_places() -> None:
    options = batch(
        startingPosition="at_timestamp 1700000000000",
        endingPosition="at_timestamp 1700000000001",
        maxRecords="7",
    )
    assert options.ending_position is not None
    assert options.ending_position.default == AtTimestamp(millis=EpochMillis(1_700_000_000_001))
    assert options.max_records == 7


def after(number: int, sub: int) -> str:
    return (
        f'{{"{SHARD}": {{"after_sequence_number": "{number}", "sub_sequence_number": {sub}}}, '
        '"default": "at_timestamp 1700000000000"}'
    )


@pytest.mark.parametrize(
    ("raw", "option"),
    [
        ({"startingPosition": "latest"}, "startingPosition"),
        (
            {"startingPosition": f'{{"{SHARD}": "latest", "default": "trim_horizon"}}'},
            "startingPosition",
        ),
        (
            {
                "startingPosition": "at_timestamp 1700000000001",
                "endingPosition": "at_timestamp 1700000000000",
            },
            "endingPosition",
        ),
        ({"startingPosition": after(10, 0), "endingPosition": after(9, 5)}, "endingPosition"),
        ({"startingPosition": after(9, 2), "endingPosition": after(9, 1)}, "endingPosition"),
        ({"startingPosition": "at_timestamp 2026-01-01"}, "startingPosition"),
        ({"startingPosition": "{bad", "endingPosition": after(9, 5)}, "startingPosition"),
        ({"endingPosition": '{"clicks": {"shardId-1": "latest"}}'}, "endingPosition"),
        ({"applicationName": "orders-etl"}, "applicationName"),
        ({"leaseTable": "orders-leases"}, "leaseTable"),
    ],
)
def test_what_a_batch_read_refuses(raw: dict[str, str], option: str) -> None:
    with pytest.raises(InvalidOptionsError) as raised:
        batch(**raw)
    assert [problem.option for problem in raised.value.problems] == [option]


def test_an_end_at_its_start_is_an_empty_read() -> None:
    assert batch(startingPosition=after(9, 1), endingPosition=after(9, 1)).ending_position
    # An aggregated record that is not split is read as a whole or not at all.
    start = after(9, 0).replace(', "sub_sequence_number": 0', "")
    found = batch(startingPosition=start, endingPosition=after(9, 0), deaggregate="false")
    assert found.ending_position


@pytest.mark.parametrize("option", ["endingPosition", "maxRecords"])
def test_a_streaming_query_refuses_what_only_a_batch_read_has(option: str) -> None:
    raw = {"streamName": "orders", option: "1" if option == "maxRecords" else "latest"}
    with pytest.raises(InvalidOptionsError, match=r"spark\.read"):
        parse_options(raw)
    assert parse_at_load(raw) == parse_options(raw, QueryKind.BATCH)


def test_limits_of_a_trigger_have_no_effect_with_any_pyspark(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        options = parse_options(
            {"streamName": "orders", "maxRecordsPerTrigger": "5", "maxBytesPerShard": "1m"},
            QueryKind.BATCH,
            pyspark_without_limits="4.0.2",
        )
    assert options.max_records is None
    (record,) = caplog.records
    assert record.getMessage().endswith("maxRecordsPerTrigger, maxBytesPerShard")
