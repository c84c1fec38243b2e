"""From Spark's map of text to `SinkOptions`. Runs on the driver alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final

from kafka_source.client_properties import PREFIX, PropertyReading, missing_brokers, read_properties
from kafka_source.offset_json import TOPIC, TOPIC_RULE
from kafka_source.option_table import INCLUDE_HEADERS, KAFKA_OPTIONS
from kafka_source.producer_property_names import PRODUCER
from kafka_source.sink_options import SinkOptions
from ssp_common.option_values import boolean, matching
from ssp_common.options import (
    ForeignOption,
    InvalidOptionsError,
    OptionProblem,
    OptionReading,
    OptionSpec,
    OptionTable,
    read_options,
)
from task_grouping.identifiers import StreamName

SINK: Final = "kafka-ssp"
_PARTITIONER: Final = "partitioner"

_log = logging.getLogger("spark_ssp.kafka_source.parse_sink_options")

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
    doc="Whether records get two headers by which `drop_repeats` knows those that were written "
    "again.",
)

_SOURCE: Final = "the Kafka source"

SINK_OPTIONS: Final = OptionTable(
    specs=(TOPIC_OPTION, INCLUDE_REPEAT_HEADERS),
    foreign=(
        ForeignOption(
            name=INCLUDE_HEADERS.name,
            origin=_SOURCE,
            refused=False,
            advice="headers are written whenever there is a column headers",
        ),
        *(
            ForeignOption(name=spec.name, origin=_SOURCE, refused=False, advice="it is for reading")
            for spec in KAFKA_OPTIONS.specs
            if spec is not INCLUDE_HEADERS
        ),
    ),
    prefixes=("includerepeat",),
)

_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of every sink, which Spark reads itself and hands over all the same."""


def parse(raw: Mapping[str, str]) -> SinkOptions:
    """Parse and check. Raises InvalidOptionsError over every problem; then warns of the options
    that have no effect, each line once per call."""
    own = {
        name: raw[name]
        for name in raw
        if not name.strip().lower().startswith(PREFIX) and name.strip().lower() not in _OF_SPARK
    }
    reading = read_options(SINK_OPTIONS, own)
    client = read_properties(raw, PRODUCER)
    problems = (
        *reading.problems,
        *_partitioner_problems(reading, client),
        *missing_brokers(client),
        *client.problems,
    )
    if problems:
        raise InvalidOptionsError(SINK, problems)
    _warn(reading, client)
    topic = reading.value(TOPIC_OPTION)
    return SinkOptions(
        topic=None if topic is None else StreamName(topic),
        include_repeat_headers=reading.value(INCLUDE_REPEAT_HEADERS),
        client=client.properties,
    )


def _partitioner_problems(
    reading: OptionReading, client: PropertyReading
) -> Iterator[OptionProblem]:
    chosen = dict(client.properties.public)[_PARTITIONER]
    if reading.value(INCLUDE_REPEAT_HEADERS) and chosen == "random":
        yield OptionProblem(
            option=PREFIX + _PARTITIONER,
            found=f"random together with {INCLUDE_REPEAT_HEADERS.name}",
            expected="a partitioner that sends a record that is written again to its partition",
            next_step=f"remove it, or leave {INCLUDE_REPEAT_HEADERS.name} out",
        )


def _warn(reading: OptionReading, client: PropertyReading) -> None:
    for option in reading.without_effect:
        _log.warning(
            "Option %s of %s has no effect on a sink: %s.",
            option.name,
            option.origin,
            option.advice,
        )
    for name in reading.unknown:
        _log.warning("Option %s is not known to the sink %s and has no effect.", name, SINK)
    for line in client.warnings:
        _log.warning("Option %s", line)
