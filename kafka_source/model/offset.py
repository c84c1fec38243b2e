"""Offsets, version 2: the position of every partition, and the task that it belongs to.

    {"v": 2,
     "topics": {"orders": {"id": "4mWqrD…", "next": [23, 9, 4], "begin": {"2": 0}}},
     "assignment": {"v": 2, "grouper": "partition", …},
     "split": {"offsets": 100000, "tasks": 8}}

* `next` is the offset of the next record to read: a list if its partitions are 0 to n - 1,
  otherwise an object by partition.
* `id` is the topic's id; it is absent if the brokers return none.
* `begin` appears only in the first offset that contains a partition, or in the first after a
  tolerated gap. It is the position where reading starts, instead of the one in the previous
  offset, in the form of `next`. So a batch can be planned again from its two offsets, without
  options and without a request.
* `assignment` (`grouping.assignment`) has the same partitions, and the partition counts that
  the topics have had, which define the generations of partitions.
* `split` appears only if the batch before this offset reads partitions in several tasks, with the
  options that it was planned with (`Split`). So a batch that is planned again has the same tasks,
  by which the Kafka sink identifies rows.
* The offset before a query's first batch is empty.

In version 1 `next` and `begin` are always objects, the assignment is of version 1, and there is no
`split`.

Spark compares offsets as text, and PySpark writes a dict in insertion order. So every level is
inserted in sorted order, partitions by number, and equal offsets are equal text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spark_ssp.common.errors import NEW_CHECKPOINT, IncompatibleStateError
from spark_ssp.common.versioned_json import Codec, Json, VersionedDocument, whole_number
from spark_ssp.grouping.assignment import (
    NO_ASSIGNMENT,
    TaskAssignment,
    decode_assignment,
    encode_assignment,
    encode_assignment_v1,
    restrict_to,
)
from spark_ssp.grouping.identifiers import StreamName, SystemStream, SystemStreamPartition
from spark_ssp.kafka_source.model.topic import SYSTEM, TopicId, kafka_name, partition_of

OFFSET_VERSION = 2

_DOCUMENT: Final = VersionedDocument(
    subject="checkpoint of a kafka-ssp query",
    article="an",
    noun="offset",
    full_name="a kafka-ssp offset",
    next_step="run the query with the spark-ssp version that wrote this checkpoint, or start it "
    f"on {NEW_CHECKPOINT}",
)
Positions = Mapping[SystemStreamPartition, int]
"""The offset of the next record to read, by partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The division of a batch's partitions into more tasks: at least about `min_tasks`, each of at
    most `max_offsets`. One of the two may be None."""

    min_tasks: int | None = None
    max_offsets: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The position of every partition, and the tasks. `positions` and the assignment have the same
    partitions, and `topics` has their topics. `explicit_starts` has some of the partitions, none
    after its position; it is stored as `begin`. `split` is that of the batch which ends here; None
    if its tasks are those of the assignment."""

    topics: Mapping[StreamName, TopicId | None] = field(default_factory=dict)
    positions: Positions = field(default_factory=dict)
    explicit_starts: Positions = field(default_factory=dict)
    assignment: TaskAssignment = NO_ASSIGNMENT
    split: Split | None = None


BEFORE_FIRST_BATCH = Offset()


def encode(offset: Offset) -> Json:
    """Return the offset as the JSON that Spark stores."""
    document = _encode(offset, OFFSET_VERSION, _encode_numbers, encode_assignment)
    if offset.split is not None:
        limits = {"offsets": offset.split.max_offsets, "tasks": offset.split.min_tasks}
        document["split"] = {name: limit for name, limit in limits.items() if limit is not None}
    return document


def without_topics(offset: Offset, topics: Collection[StreamName]) -> Offset:
    """Return the offset without some topics; the same object if it has none of them. Raises
    IncompatibleStateError if it has no others: only the offset before a query's first batch is
    empty."""
    dropped = offset.topics.keys() & set(topics)
    if not dropped:
        return offset
    kept = offset.topics.keys() - dropped
    if not kept:
        raise IncompatibleStateError(
            "option dropTopics",
            found=f"every topic of the checkpoint: {', '.join(sorted(dropped))}",
            expected="at least one topic that the query continues to read",
            next_step=f"start the query on {NEW_CHECKPOINT}",
        )
    streams = [SystemStream(system=SYSTEM, stream=topic) for topic in kept]
    return Offset(
        topics={topic: offset.topics[topic] for topic in sorted(kept)},
        positions={ssp: at for ssp, at in offset.positions.items() if ssp.stream in kept},
        explicit_starts={
            ssp: at for ssp, at in offset.explicit_starts.items() if ssp.stream in kept
        },
        assignment=restrict_to(offset.assignment, streams),
        split=offset.split,
    )


def is_offset(document: object) -> bool:
    """Return whether a document of any source has the shape of a kafka-ssp offset. Offsets of
    Spark's Kafka source have topics at the top."""
    return (
        isinstance(document, dict)
        and isinstance(document.get("v"), int)
        and isinstance(document.get("topics"), dict)
    )


def decode(document: Any) -> Offset:
    """Parse a stored offset. Raise IncompatibleStateError for an unknown version."""
    return _DOCUMENT.read(document, _CODECS)


# --- Writing -------------------------------------------------------------------------------------


def _encode_v1(offset: Offset) -> Json:
    return _encode(offset, 1, _encode_numbers_v1, encode_assignment_v1)


def _encode(
    offset: Offset,
    version: int,
    encode_numbers: Callable[[Mapping[int, int]], object],
    encode_tasks: Callable[[TaskAssignment], Json],
) -> Json:
    nexts, begins = _by_topic(offset.positions), _by_topic(offset.explicit_starts)
    topics: Json = {}
    for topic in sorted(offset.topics):
        entry: Json = {}
        topic_id = offset.topics[topic]
        if topic_id is not None:
            entry["id"] = topic_id
        entry["next"] = encode_numbers(nexts.get(topic, {}))
        if topic in begins:
            entry["begin"] = encode_numbers(begins[topic])
        topics[topic] = entry
    document: Json = {"v": version, "topics": topics}
    if offset.assignment != NO_ASSIGNMENT:
        document["assignment"] = encode_tasks(offset.assignment)
    return document


def _by_topic(positions: Positions) -> dict[StreamName, dict[int, int]]:
    """Return positions by topic and partition, sorted."""
    topics: dict[StreamName, dict[int, int]] = {}
    for ssp, position in positions.items():
        topics.setdefault(ssp.stream, {})[ssp.partition] = position
    return {topic: dict(sorted(topics[topic].items())) for topic in sorted(topics)}


def _encode_numbers_v1(positions: Mapping[int, int]) -> object:
    return {str(partition): position for partition, position in positions.items()}


def _encode_numbers(positions: Mapping[int, int]) -> object:
    if positions and max(positions) == len(positions) - 1:
        return list(positions.values())
    return _encode_numbers_v1(positions)


# --- Reading -------------------------------------------------------------------------------------


def _decode(document: Json) -> Offset:
    """Parse an offset of either version: reading accepts both forms of positions, and the
    comparison with the written document refuses the other version's."""
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
        topics=topics,
        positions=positions,
        explicit_starts=explicit_starts,
        assignment=assignment,
        split=_decode_split(document["split"]) if "split" in document else None,
    )
    _check_consistency(offset)
    return offset


_CODECS: Final = {
    1: Codec(parse=_decode, write=_encode_v1),
    OFFSET_VERSION: Codec(parse=_decode, write=encode),
}


def _topic_id(value: object) -> TopicId:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not a topic id")
    return TopicId(value)


def _decode_positions(
    topic: StreamName, document: Json | list[object]
) -> dict[SystemStreamPartition, int]:
    numbers = (
        enumerate(document)
        if isinstance(document, list)
        else ((partition_number(text), position) for text, position in document.items())
    )
    return {
        partition_of(topic, partition): whole_number(position, what="position")
        for partition, position in numbers
    }


def _decode_split(document: Json) -> Split:
    limits = {name: whole_number(limit, what="limit") for name, limit in document.items()}
    if not limits or 0 in limits.values():
        raise ValueError(f"{document} is not a split")
    return Split(min_tasks=limits.get("tasks"), max_offsets=limits.get("offsets"))


def partition_number(text: str) -> int:
    """Parse a key of a stored offset. Raises ValueError."""
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
