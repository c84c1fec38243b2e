"""The option `trigger`, and limits of a batch with a PySpark that does not pass them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.kafka_source.options.parse import parse_options as parse_kafka
from spark_ssp.kafka_source.options.values import KAFKA_OPTIONS, QueryKind
from spark_ssp.kinesis_source.options.parse import parse_options as parse_kinesis
from spark_ssp.kinesis_source.options.values import KINESIS_OPTIONS

OLD = "4.1.1"
KINESIS = {"streamName": "orders"}
KAFKA = {"kafka.bootstrap.servers": "broker:9092", "subscribe": "orders"}

Parse = Callable[..., Any]
LIMITS = [
    pytest.param(parse, {**least, name: value}, name, id=name)
    for parse, least, options in (
        (
            parse_kinesis,
            KINESIS,
            {
                "maxRecordsPerTrigger": "10",
                "maxBytesPerTrigger": "1m",
                "maxBytesPerShard": "256m",
                "applicationName": "orders-etl",
            },
        ),
        (parse_kafka, KAFKA, {"maxOffsetsPerTrigger": "10", "MAXBYTESPERTRIGGER": "1m"}),
    )
    for name, value in options.items()
]
HARMLESS = [
    pytest.param(parse_kinesis, KINESIS, id="the default of maxBytesPerShard"),
    pytest.param(parse_kinesis, {**KINESIS, "maxBytesPerShard": "0"}, id="no maxBytesPerShard"),
    pytest.param(
        parse_kafka,
        {**KAFKA, "minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"},
        id="minOffsetsPerTrigger, which never delays the first batch of a run",
    ),
]


@pytest.mark.parametrize(("parse", "options", "name"), LIMITS)
def test_a_limit_is_an_error_unless_the_trigger_is_declared(
    parse: Parse, options: dict[str, str], name: str
) -> None:
    with pytest.raises(InvalidOptionsError) as raised:
        parse(options, pyspark_without_limits=OLD)
    (problem,) = raised.value.problems
    assert problem.option.lower() == name.lower()
    assert f"PySpark {OLD}, which runs the triggers availableNow and once" in problem.found
    assert "PySpark 4.2" in problem.expected
    assert "trigger=processingTime" in problem.next_step
    declared = parse(options | {"Trigger": "processingtime"}, pyspark_without_limits=OLD)
    assert declared.is_triggered_by_time
    assert not parse(options).is_triggered_by_time


@pytest.mark.parametrize(("parse", "options"), HARMLESS)
def test_options_that_leave_no_record_unread_need_no_trigger(
    parse: Parse, options: dict[str, str]
) -> None:
    assert parse(options, pyspark_without_limits=OLD) == parse(options)


def test_every_limit_is_named_at_once() -> None:
    both = {**KINESIS, "maxRecordsPerTrigger": "10", "maxBytesPerShard": "1m"}
    with pytest.raises(InvalidOptionsError) as raised:
        parse_kinesis(both, pyspark_without_limits=OLD)
    assert [problem.option for problem in raised.value.problems] == [
        "maxRecordsPerTrigger",
        "maxBytesPerShard",
    ]


def test_no_option_that_may_bound_a_batch_is_forgotten() -> None:
    """A new `max...` option is decided upon here. `maxRecords` is refused in a stream, and
    `maxRecordsPerPartition` bounds the task, not the batch."""
    sizes = {"maxRecordsPerFetch", "maxBytesInFlight", "maxLeasesPerWorker", "maxTriggerDelay"}
    sizes |= {"maxRecords", "maxRecordsPerPartition"}
    every = {spec.name for spec in (*KINESIS_OPTIONS.options, *KAFKA_OPTIONS.options)}
    named = {name for name in every if name.startswith("max")} - sizes
    limits = {str(param.id).lower() for param in LIMITS} - {"applicationname"}
    assert {name.lower() for name in named} == limits


def test_a_batch_query_has_no_trigger_and_ignores_limits() -> None:
    options = parse_kafka(
        {**KAFKA, "maxOffsetsPerTrigger": "10"}, QueryKind.BATCH, pyspark_without_limits=OLD
    )
    assert options.max_offsets_per_trigger is None


@pytest.mark.parametrize(("parse", "least"), [(parse_kinesis, KINESIS), (parse_kafka, KAFKA)])
@pytest.mark.parametrize("value", ["availableNow", "once", "1 minute"])
def test_only_triggers_by_time_are_declared(
    parse: Parse, least: dict[str, str], value: str
) -> None:
    with pytest.raises(InvalidOptionsError) as raised:
        parse({**least, "trigger": value})
    (problem,) = raised.value.problems
    assert (problem.option, problem.expected) == ("trigger", "processingTime")
    assert value in problem.found
