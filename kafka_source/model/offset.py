"""Offsets, version 1: every partition's position at a moment, and which task it belongs to.

    {"v": 1,
     "topics": {"orders": {"id": "4mWqrD…", "next": {"0": 23, "1": 9, "2": 4}, "begin": {"2": 0}}},
     "assignment": {"v": 1, "grouper": "partition", …}}

* `next` is, by partition, the offset of the next record to read.
* `id` is the topic's id; it is left out where the brokers do not tell one.
* `begin` stands only in the offset that has a partition first, or has it after a gap that was
  tolerated: where reading begins there, instead of where the offset before left it. So a batch is
  planned again from its two offsets, with no option and no call.
* `assignment` (`task_grouping.assignment`) has the same partitions, and the counts that the topics
  have had: the generations of their partitions.
* The offset before a query's first batch is empty.

Spark compares offsets as text and PySpark writes a dict in insertion order. So every level is
inserted in sorted order, partitions as numbers, and equal offsets are equal text.
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
"""By partition, the offset of the next record to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """All positions at a moment.

    `positions` and the assignment have the same partitions, `topics` their topics; `begins` has
    some of the partitions, none behind its position.
    """

    topics: Mapping[StreamName, TopicId | None] = field(default_factory=dict)
    positions: Positions = field(default_factory=dict)
    explicit_starts: Positions = field(default_factory=dict)
    assignment: TaskAssignment = NO_ASSIGNMENT


BEFORE_FIRST_BATCH = Offset()


def encode(offset: Offset) -> Json:
    """The offset as Spark shall store it."""
    document: Json = {"v": OFFSET_VERSION, "topics": _encode_topics(offset)}
    if offset.assignment != NO_ASSIGNMENT:
        document["assignment"] = encode_assignment(offset.assignment)
    return document


def decode(document: Any) -> Offset:
    """Read an offset back; `IncompatibleStateError` when it is none that this version wrote."""
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
    _check_whole(offset)
    return offset


def _topic_id(value: object) -> TopicId:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is no topic id")
    return TopicId(value)


def _decode_positions(topic: StreamName, document: Json) -> dict[SystemStreamPartition, int]:
    return {
        partition_of(topic, _partition(number)): whole_number(position, what="position")
        for number, position in document.items()
    }


def _partition(text: str) -> int:
    number = int(text)
    if str(number) != text or number < 0:
        raise ValueError(f"{text!r} is no partition")
    return number


def _check_whole(offset: Offset) -> None:
    """Its parts must fit each other, or an edited offset would fail far from here."""
    owners = offset.assignment.owners()
    for ssp in sorted(owners.keys() ^ offset.positions.keys()):
        raise ValueError(f"{ssp} is not both in the positions and in the assignment")
    for topic in sorted(offset.topics.keys() - {ssp.stream for ssp in offset.positions}):
        raise ValueError(f"{topic} has no partitions")
    for ssp, begin in sorted(offset.explicit_starts.items()):
        if ssp not in offset.positions:
            raise ValueError(f"{kafka_name(ssp)} begins but has no position")
        if begin > offset.positions[ssp]:
            raise ValueError(f"{kafka_name(ssp)} begins behind its position")
