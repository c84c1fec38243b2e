"""Parses and validates the options of the sink into `SinkOptions`. Runs only on the driver."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final

from spark_ssp.common.errors import printable
from spark_ssp.common.options.batch_write import batch_write_id, batch_write_problems
from spark_ssp.common.options.credentials import CREDENTIALS_PROVIDER
from spark_ssp.common.options.spec import (
    ForeignOption,
    InvalidOptionsError,
    OptionProblem,
    OptionReading,
    OptionSpec,
    OptionTable,
    read_options,
)
from spark_ssp.common.options.values import boolean, matching
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.options.credentials import (
    LOGIN_OPTIONS,
    function_problems,
    with_functions,
)
from spark_ssp.kafka_source.options.offset_json import TOPIC, TOPIC_RULE
from spark_ssp.kafka_source.options.table import INCLUDE_HEADERS, KAFKA_OPTIONS, SERVICE_CREDENTIAL
from spark_ssp.kafka_source.properties.producer_properties import PRODUCER
from spark_ssp.kafka_source.properties.property_access import access_problems, access_warnings
from spark_ssp.kafka_source.properties.translation import (
    PREFIX,
    ParsedProperties,
    missing_brokers,
    read_properties,
)
from spark_ssp.kafka_source.sink.writer import SinkOptions

SINK: Final = "kafka-ssp"
_PARTITIONER: Final = "partitioner"
_RANDOM_PARTITIONERS: Final = frozenset({"random", "consistent_random"})
"""The second one also chooses a random partition for empty keys, and not only for null ones."""

_log = logging.getLogger(__name__)

_topic: Final = matching(TOPIC.pattern, TOPIC_RULE, "give the name of one topic")

TOPIC_OPTION: Final[OptionSpec[str | None]] = OptionSpec(
    name="topic",
    convert=_topic,
    default=None,
    default_text="each row's column `topic`",
    doc="The topic to write to. The column `topic` then has no effect.",
)

INCLUDE_REPEAT_HEADERS: Final[OptionSpec[bool]] = OptionSpec(
    name="includeRepeatHeaders",
    convert=boolean,
    default=False,
    default_text="`false`",
    doc="Add two headers to each record, by which `drop_duplicates` detects records that were "
    "written again.",
)

BATCH_WRITE_ID: Final = batch_write_id(INCLUDE_REPEAT_HEADERS, "topic")

_SOURCE: Final = "the Kafka source"

SINK_OPTIONS: Final = OptionTable(
    specs=(TOPIC_OPTION, INCLUDE_REPEAT_HEADERS, BATCH_WRITE_ID, *LOGIN_OPTIONS),
    foreign=(
        ForeignOption(
            name=INCLUDE_HEADERS.name,
            origin=_SOURCE,
            refused=False,
            advice="headers are written if there is a column headers",
        ),
        *(
            ForeignOption(
                name=spec.name,
                origin=_SOURCE,
                refused=False,
                advice="it is an option of the source",
            )
            for spec in KAFKA_OPTIONS.specs
            if spec is not INCLUDE_HEADERS and spec not in LOGIN_OPTIONS
        ),
        SERVICE_CREDENTIAL,
    ),
    prefixes=("includerepeat",),
)

_SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of every sink, which Spark reads itself and also passes on."""


def parse_sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """Parse and validate. Raises InvalidOptionsError with all problems; else warns of the options
    that have no effect, once per call."""
    own = {
        name: raw[name]
        for name in raw
        if not name.strip().lower().startswith(PREFIX)
        and name.strip().lower() not in _SPARK_OPTIONS
    }
    reading = read_options(SINK_OPTIONS, own)
    client = read_properties(raw, PRODUCER)
    problems = (
        *reading.problems,
        *_partitioner_problems(reading, client),
        *batch_write_problems(reading, BATCH_WRITE_ID, INCLUDE_REPEAT_HEADERS),
        *missing_brokers(client),
        *client.problems,
        *function_problems(client.properties, reading),
        *access_problems(client.properties),
    )
    if problems:
        raise InvalidOptionsError(SINK, problems)
    _warn(reading, client)
    topic = reading.value(TOPIC_OPTION)
    return SinkOptions(
        topic=None if topic is None else StreamName(topic),
        include_repeat_headers=reading.value(INCLUDE_REPEAT_HEADERS),
        batch_write=reading.value(BATCH_WRITE_ID),
        client=with_functions(client.properties, reading),
    )


def _partitioner_problems(
    reading: OptionReading, client: ParsedProperties
) -> Iterator[OptionProblem]:
    chosen = dict(client.properties.public)[_PARTITIONER]
    if reading.value(INCLUDE_REPEAT_HEADERS) and chosen in _RANDOM_PARTITIONERS:
        yield OptionProblem(
            option=PREFIX + _PARTITIONER,
            found=f"{chosen} together with {INCLUDE_REPEAT_HEADERS.name}",
            expected="a partitioner that sends a record to the same partition again",
            next_step=f"remove it, or leave {INCLUDE_REPEAT_HEADERS.name} out",
        )


def _warn(reading: OptionReading, client: ParsedProperties) -> None:
    for option in reading.without_effect:
        _log.warning(
            "option %s of %s has no effect on a sink: %s",
            option.name,
            option.origin,
            option.advice,
        )
    for name in reading.unknown:
        _log.warning("option %s is unknown to the sink %s and has no effect", printable(name), SINK)
    if reading.given(CREDENTIALS_PROVIDER) and client.properties.iam is None:
        _log.warning(
            "option %s has no effect on a sink without a login by AWS's IAM",
            CREDENTIALS_PROVIDER.name,
        )
    for line in client.warnings:
        _log.warning("option %s", line)
    for line in access_warnings(client.properties):
        _log.warning("option %s", line)
