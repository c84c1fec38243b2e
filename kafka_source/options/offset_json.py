"""Parses JSON in the options of Spark's Kafka source: partitions, offsets and times by topic.

The form is Spark's (`JsonUtils`): topics are case-sensitive, partitions are keys in quotes, an
offset is a whole number, in quotes or not, -2 meaning earliest and -1 latest. Values that Spark
accepts or alters silently are errors here: a duplicate key (Spark takes the last), a fraction
(Spark truncates it), null, a negative partition, an offset below -2 and a negative time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

from spark_ssp.common.errors import shown
from spark_ssp.common.options.spec import BadValueError, Fault
from spark_ssp.grouping.identifiers import EpochMillis, StreamName, SystemStreamPartition
from spark_ssp.kafka_source.model.topic import (
    AtOffsets,
    AtTimes,
    LogicalOffset,
    TopicId,
    partition_of,
)

T = TypeVar("T")

_PARTITIONS: Final = '{"topicA": [0, 1], "topicB": [0, 1]}'
_OFFSETS: Final = '{"topicA": {"0": 23, "1": -1}, "topicB": {"0": -2}}'
_IDS: Final = '{"topicA": "3f7Q2mJ8T0-a1bC4dE5fGg"}'
_TIMES: Final = '{"topicA": {"0": 123456789, "1": 123456789}}'

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_MAX_INT: Final = (1 << 31) - 1
_MAX_LONG: Final = (1 << 63) - 1

_TOPIC_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)

TOPIC: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}", re.ASCII)
"""The form of a topic's name (Kafka, `org.apache.kafka.common.internals.Topic`)."""

TOPIC_RULE: Final = "topics' names of 1 to 249 letters, digits, '.', '_' and '-'"


def parse_partitions(text: str) -> tuple[SystemStreamPartition, ...]:
    """Parse the option `assign`: partitions by topic. Returns them sorted, without duplicates."""
    found: set[SystemStreamPartition] = set()
    for topic, numbers in _parse_topics(text, _PARTITIONS).items():
        if not isinstance(numbers, list):
            raise _bad_value(f"{topic} without a list of partitions", _PARTITIONS)
        found.update(
            partition_of(StreamName(topic), _partition(topic, n, _PARTITIONS)) for n in numbers
        )
    if not found:
        raise _bad_value("no partitions", _PARTITIONS, "name those to read, or use subscribe")
    return tuple(sorted(found))


def parse_offsets(text: str) -> AtOffsets:
    """Parse the JSON form of `startingOffsets` and `endingOffsets`."""
    return AtOffsets(offsets=_by_partition(text, _OFFSETS, _offset))


def parse_timestamps(text: str) -> AtTimes:
    """Parse the options `startingOffsetsByTimestamp` and `endingOffsetsByTimestamp`."""
    return AtTimes(times_ms=_by_partition(text, _TIMES, _timestamp))


def parse_topic_ids(text: str) -> dict[StreamName, TopicId]:
    """Parse the option `acceptTopicIds`: an id for each topic, in the form of Kafka's tools.
    Sorted."""
    topics = _parse_topics(text, _IDS)
    for topic, topic_id in topics.items():
        if not isinstance(topic_id, str) or not _TOPIC_ID.fullmatch(topic_id):
            found = f"{topic} with {shown(json.dumps(topic_id))}"
            raise _bad_value(found, _IDS, "copy the id from the error that names it")
    if not topics:
        raise _bad_value("no topic", _IDS, "name the topics, or remove the option")
    return {StreamName(topic): TopicId(topics[topic]) for topic in sorted(topics)}


def _by_partition(
    text: str, example: str, convert: Callable[[str, int], T]
) -> dict[SystemStreamPartition, T]:
    found: dict[SystemStreamPartition, T] = {}
    for topic, values in _parse_topics(text, example).items():
        if not isinstance(values, dict):
            raise _bad_value(f"{topic} without an object of partitions", example)
        for key, value in values.items():
            ssp = partition_of(StreamName(topic), _partition(topic, key, example))
            if ssp in found:
                raise _bad_value(f"partition {ssp.partition} of {topic} twice", example)
            place = f"partition {ssp.partition} of {topic}"
            found[ssp] = convert(place, _whole_number(place, value, example, _MAX_LONG))
    if not found:
        raise _bad_value("no partitions", example, "name every partition that is read")
    return {ssp: found[ssp] for ssp in sorted(found)}


def _offset(place: str, offset: int) -> LogicalOffset | int:
    if offset >= 0:
        return offset
    if offset < -2:
        raise _bad_value(f"{place} at {offset}", _OFFSETS, "write -2 for earliest, -1 for latest")
    return LogicalOffset.EARLIEST if offset == -2 else LogicalOffset.LATEST


def _timestamp(place: str, given: int) -> EpochMillis:
    if given < 0:
        raise _bad_value(f"{place} at {given}", _TIMES, "give milliseconds since 1970")
    return EpochMillis(given)


def _parse_topics(text: str, example: str) -> dict[str, Any]:
    try:
        document = json.loads(text, object_pairs_hook=_reject_duplicate_keys)
    except _DuplicateKeyError as error:
        raise _bad_value(f"the key {shown(str(error))} twice in one object", example) from None
    except (ValueError, RecursionError):
        raise _bad_value(f"{shown(text)}, which is not JSON", example) from None
    if not isinstance(document, dict):
        raise _bad_value(f"{shown(text)}, which is not an object", example)
    for topic in document:
        if not TOPIC.fullmatch(topic):
            raise _bad_value(shown(topic), TOPIC_RULE, "write the name of a topic of the cluster")
    return document


class _DuplicateKeyError(Exception):
    """A key appears twice in an object."""


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _DuplicateKeyError(next(key for key in keys if keys.count(key) > 1))
    return entries


def _partition(topic: str, value: object, example: str) -> int:
    number = _whole_number(f"a partition of {topic}", value, example, _MAX_INT)
    if number < 0:
        raise _bad_value(f"partition {number} of {topic}", example, "partitions count from 0")
    return number


def _whole_number(place: str, value: object, example: str, most: int) -> int:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value)
    if type(value) is not int or not -most - 1 <= value <= most:
        raise _bad_value(f"{place} with {shown(json.dumps(value))}", example, "give a whole number")
    return value


def _bad_value(found: str, expected: str, next_step: str = "use this form") -> BadValueError:
    if expected.startswith("{"):
        expected = f"JSON such as {expected}"
    return BadValueError(Fault(found=found, expected=expected, next_step=next_step))
