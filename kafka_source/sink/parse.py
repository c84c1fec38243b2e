"""Parses and validates the options of the Kafka sink. Runs only on the driver."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final

from spark_ssp.common.errors import printable
from spark_ssp.common.options.endpoints import CREDENTIALS_PROVIDER
from spark_ssp.common.options.shared import batch_write_problems
from spark_ssp.common.options.spec import (
    KAFKA,
    ForeignOption,
    InvalidOptionsError,
    OptionProblem,
    OptionReading,
    OptionTable,
    options_of,
    read_options,
)
from spark_ssp.kafka_source.options.client_properties import PREFIX
from spark_ssp.kafka_source.options.parse import function_problems, with_functions
from spark_ssp.kafka_source.options.property_names import PRODUCER
from spark_ssp.kafka_source.options.translation import (
    ParsedProperties,
    access_problems,
    access_warnings,
    missing_brokers,
    read_properties,
)
from spark_ssp.kafka_source.options.values import KAFKA_OPTIONS, LOGIN_OPTIONS, SERVICE_CREDENTIAL
from spark_ssp.kafka_source.sink.options import (
    DELIVERY_GUARANTEE,
    EXACTLY_ONCE_FROM,
    INCLUDE_REPEAT_HEADERS,
    MARKER_TOPIC,
    TRANSACTION_NAME,
    Delivery,
    SinkOptions,
)

SINK: Final = "kafka-ssp"

_PARTITIONER: Final = "partitioner"
_RANDOM_PARTITIONERS: Final = frozenset({"random", "consistent_random"})
"""The second one also chooses a random partition for empty keys, and not only for null ones."""

_SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of every sink, which Spark reads itself and also passes on."""

_log = logging.getLogger(__name__)

SINK_OPTIONS: Final = OptionTable(
    options=(*options_of(SinkOptions), *LOGIN_OPTIONS),
    foreign=(
        *(
            ForeignOption(
                name=declared.name,
                origin=KAFKA,
                refused=False,
                advice="headers are written if there is a column headers"
                if declared.name == "includeHeaders"
                else "it is an option of the source",
            )
            for declared in KAFKA_OPTIONS.options
            if declared not in LOGIN_OPTIONS
        ),
        SERVICE_CREDENTIAL,
    ),
    prefixes=("includerepeat",),
)


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
    options = SinkOptions(
        client=with_functions(client.properties, reading), **reading.fields(SinkOptions)
    )
    problems = (
        *reading.problems,
        *_partitioner_problems(options, client),
        *batch_write_problems(
            reading,
            f"{INCLUDE_REPEAT_HEADERS}=true or {DELIVERY_GUARANTEE}={Delivery.EXACTLY_ONCE}",
            is_included=options.include_repeat_headers or options.is_exactly_once,
        ),
        *_delivery_problems(options, reading, client),
        *missing_brokers(client),
        *client.problems,
        *function_problems(client.properties, reading),
        *access_problems(client.properties),
    )
    if problems:
        raise InvalidOptionsError(SINK, problems)
    _warn(reading, client)
    return options


def _partitioner_problems(
    options: SinkOptions, client: ParsedProperties
) -> Iterator[OptionProblem]:
    chosen = dict(client.properties.public)[_PARTITIONER]
    if options.include_repeat_headers and chosen in _RANDOM_PARTITIONERS:
        yield OptionProblem(
            option=PREFIX + _PARTITIONER,
            found=f"{chosen} together with {INCLUDE_REPEAT_HEADERS}",
            expected="a partitioner that sends a record to the same partition again",
            next_step=f"remove it, or leave {INCLUDE_REPEAT_HEADERS} out",
        )


def _delivery_problems(
    options: SinkOptions, reading: OptionReading, client: ParsedProperties
) -> Iterator[OptionProblem]:
    if not options.is_exactly_once:
        for name in (TRANSACTION_NAME, MARKER_TOPIC, EXACTLY_ONCE_FROM):
            if reading.given(name):
                yield OptionProblem(
                    option=name,
                    found=f"{DELIVERY_GUARANTEE}={options.delivery}, with which it has no effect",
                    expected=f"{DELIVERY_GUARANTEE}={Delivery.EXACTLY_ONCE}",
                    next_step=f"set {DELIVERY_GUARANTEE}={Delivery.EXACTLY_ONCE}, or remove it",
                )
        return
    if options.include_repeat_headers:
        yield OptionProblem(
            option=INCLUDE_REPEAT_HEADERS,
            found=f"true, with {DELIVERY_GUARANTEE}={options.delivery}, which leaves no repeats",
            expected="one of the two",
            next_step="remove it; readers need kafka.isolation.level=read_committed",
        )
    topic_given, marker_given = reading.given("topic"), reading.given(MARKER_TOPIC)
    if topic_given and marker_given:
        yield OptionProblem(
            option=MARKER_TOPIC,
            found="it and the option topic, which the sink's committed offsets name then",
            expected="one of the two",
            next_step="remove it; or, if rows have a column topic that is to be used, the option "
            "topic",
        )
    if not topic_given and not marker_given:
        yield OptionProblem(
            option=MARKER_TOPIC,
            found=f"neither it nor the option topic, with {DELIVERY_GUARANTEE}={options.delivery}",
            expected="a topic for the sink's committed offsets",
            next_step="set the option topic; or, if rows have a column topic, markerTopic to an "
            "existing topic",
        )
    values = dict(client.properties.public)
    for name, expected in client.not_idempotent.items():
        yield OptionProblem(
            option=client.properties.option(name),
            found=f"{values[name]}, with {DELIVERY_GUARANTEE}={options.delivery}",
            expected=f"{expected}, which transactions need",
            next_step="remove it",
        )


def _warn(reading: OptionReading, client: ParsedProperties) -> None:
    for foreign in reading.without_effect:
        _log.warning(
            "option %s of %s has no effect on a sink: %s",
            foreign.name,
            foreign.origin,
            foreign.advice,
        )
    for name in reading.unknown:
        _log.warning("option %s is unknown to the sink %s and has no effect", printable(name), SINK)
    if reading.given(CREDENTIALS_PROVIDER) and client.properties.iam is None:
        _log.warning(
            "option %s has no effect on a sink without a login by AWS's IAM",
            CREDENTIALS_PROVIDER,
        )
    for line in client.warnings:
        _log.warning("option %s", line)
    for line in access_warnings(client.properties):
        _log.warning("option %s", line)
