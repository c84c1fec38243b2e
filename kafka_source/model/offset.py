"""Offsets, version 1: the position of every partition, and the task that it belongs to.

    {"v": 1,
     "topics": {"orders": {"id": "4mWqrD…", "next": {"0": 23, "1": 9, "2": 4}, "begin": {"2": 0}}},
     "assignment": {"v": 1, "grouper": "partition", …}}

* `next` is, by partition, the offset of the next record to read.
* `id` is the topic's id; it is absent if the brokers return none.
* `begin` appears only in the first offset that contains a partition, or in the first after a
  tolerated gap. It is the position where reading starts, instead of the one in the previous offset.
  So a batch can be planned again from its two offsets, without options and without a request.
* `assignment` (`task_grouping.assignment`) has the same partitions, and the partition counts that
  the topics have had, which define the generations of partitions.
* The offset before a query's first batch is empty.

Spark compares offsets as text, and PySpark writes a dict in insertion order. So every level is
inserted in sorted order, partitions by number, and equal offsets are equal text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kafka_source.model.topic import TopicId, kafka_name, partition_of
from ssp_common.documents.versioned_json import Json, VersionedDocument, whole_number
from task_grouping.assignment import (
    NO_ASSIGNMENT,
    TaskAssignment,
    decode_assignment,
    encode_assignment,
)
from task_grouping.identifiers import StreamName, SystemStreamPartition

OFFSET_VERSION = 1

_DOCUMENT: Final = VersionedDocument(
    subject="checkpoint of a kafka-ssp query",
    article="an",
    noun="offset",
    full_name="a kafka-ssp offset",
    version=OFFSET_VERSION,
    next_step="run the query with the spark-ssp version that wrote this checkpoint, or start it on "
    "a new checkpoint location",
)
Positions = Mapping[SystemStreamPartition, int]
"""The offset of the next record to read, by partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The position of every partition, and the tasks.

    `positions` and the assignment have the same partitions, and `topics` has their topics.
    `explicit_starts` has some of the partitions, none after its position; it is stored as `begin`.
    """

    topics: Mapping[StreamName, TopicId | None] = field(default_factory=dict)
    positions: Positions = field(default_factory=dict)
    explicit_starts: Positions = field(default_factory=dict)
    assignment: TaskAssignment = NO_ASSIGNMENT


BEFORE_FIRST_BATCH = Offset()


def encode(offset: Offset) -> Json:
    """Return the offset as the JSON that Spark stores."""
    document: Json = {"v": OFFSET_VERSION, "topics": _encode_topics(offset)}
    if offset.assignment != NO_ASSIGNMENT:
        document["assignment"] = encode_assignment(offset.assignment)
    return document


def is_offset(document: object) -> bool:
    """Return whether a document of any source has the shape of a kafka-ssp offset. Offsets of
    Spark's Kafka source have topics at the top."""
    return (
        isinstance(document, dict)
        and isinstance(document.get("v"), int)
        and isinstance(document.get("topics"), dict)
    )


def decode(document: Any) -> Offset:
    """Parse a stored offset. Raise IncompatibleStateError unless this version wrote it."""
    return _DOCUMENT.read(document, _decode_v1, encode)


# --- Writing -------------------------------------------------------------------------------------


def _encode_topics(offset: Offset) -> Json:
    document: Json = {}
    for topic in sorted(offset.topics):
        entry: Json = {}
        topic_id = offset.topics[topic]
        if topic_id is not None:
            entry["id"] = topic_id
        entry["next"] = {}
        document[topic] = entry
    for ssp in sorted(offset.positions):
        document[ssp.stream]["next"][str(ssp.partition)] = offset.positions[ssp]
    for ssp in sorted(offset.explicit_starts):
        document[ssp.stream].setdefault("begin", {})[str(ssp.partition)] = offset.explicit_starts[
            ssp
        ]
    return document


# --- Reading -------------------------------------------------------------------------------------


def _decode_v1(document: Json) -> Offset:
    topics: dict[StreamName, TopicId | None] = {}
    positions: dict[SystemStreamPartition, int] = {}
    explicit_starts: dict[SystemStreamPartition, int] = {}
    for name, entry in document["topics"].items():
        topic = StreamName(name)
        topics[topic] = _topic_id(entry["id"]) if "id" in entry else None
        positions.update(_decode_positions(topic, entry["next"]))
        explicit_starts.update(_decode_positions(topic, entry.get("begin", {})))
    assignment = NO_ASSIGNMENT
    if "assignment" in document:
        assignment = decode_assignment(document["assignment"])
    offset = Offset(
        topics=topics, positions=positions, explicit_starts=explicit_starts, assignment=assignment
    )
    _check_consistency(offset)
    return offset


def _topic_id(value: object) -> TopicId:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not a topic id")
    return TopicId(value)


def _decode_positions(topic: StreamName, document: Json) -> dict[SystemStreamPartition, int]:
    return {
        partition_of(topic, _partition(number)): whole_number(position, what="position")
        for number, position in document.items()
    }


def _partition(text: str) -> int:
    number = int(text)
    if str(number) != text or number < 0:
        raise ValueError(f"{text!r} is not a partition")
    return number


def _check_consistency(offset: Offset) -> None:
    """Raise ValueError if the parts contradict each other: an edited offset would fail far from
    here."""
    owners = offset.assignment.owners()
    for ssp in sorted(owners.keys() ^ offset.positions.keys()):
        raise ValueError(f"{ssp} is not both in the positions and in the assignment")
    for topic in sorted(offset.topics.keys() - {ssp.stream for ssp in offset.positions}):
        raise ValueError(f"{topic} has no partitions")
    for ssp, begin in sorted(offset.explicit_starts.items()):
        if ssp not in offset.positions:
            raise ValueError(f"{kafka_name(ssp)} has a start but no position")
        if begin > offset.positions[ssp]:
            raise ValueError(f"{kafka_name(ssp)} starts after its position")
