"""An in-memory Kafka, as planning uses it, with methods by which a test changes it. `FakeKafka` is
a `KafkaService`, and has the methods of `KafkaTopics` for its topics, so that a contract test runs
over either. It answers like a single broker: nothing is ever stale, unless a test makes it so."""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from spark_ssp.common.errors import AccessError
from spark_ssp.grouping.identifiers import EpochMillis, StreamName, SystemStreamPartition
from spark_ssp.kafka_source.client.api import OffsetSpec, TimedOffset, TopicDescription
from spark_ssp.kafka_source.model.topic import (
    Assign,
    AtTime,
    IsolationLevel,
    LogicalOffset,
    Selection,
    Subscribe,
    SubscribePattern,
    TopicId,
)
from tests.support.kafka.topics import Put, Record

T = TypeVar("T")

_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


@dataclass(slots=True)
class FakeLog:
    """One partition. Offsets are places in `records`; those before `start` have expired."""

    records: list[Record] = field(default_factory=list)
    start: int = 0
    open_since: int | None = None
    """The start of the oldest unfinished transaction."""

    def end(self, isolation: IsolationLevel) -> int:
        if isolation is IsolationLevel.READ_COMMITTED and self.open_since is not None:
            return self.open_since
        return len(self.records)

    def from_time(self, millis: int, isolation: IsolationLevel) -> int | None:
        for offset in range(self.start, self.end(isolation)):
            time = self.records[offset].time_ms
            if time is not None and time >= millis:
                return offset
        return None

    def first_record(self, since_ms: int, isolation: IsolationLevel) -> TimedOffset | None:
        offset = self.from_time(since_ms, isolation)
        if offset is None:
            return None
        time_ms = self.records[offset].time_ms
        assert time_ms is not None
        return TimedOffset(offset=offset, time_ms=EpochMillis(time_ms))


@dataclass(slots=True)
class FakeTopic:
    topic_id: TopicId | None
    logs: list[FakeLog]


class FakeKafka:
    """A `KafkaService` in memory. `isolation` is that of the client. May be set at any time:

    * `faults`: raised by the next calls, one by each; None lets a call pass.
    * `descriptions`: the next answers of `describe` instead of the actual ones: stale metadata.
    * `omitted`: a spec and a partition, each left out of one answer of `list_offsets`.
    * `hidden`: topics that brokers do not know yet; their records are there.
    * `denied`: topics that the user may not describe: lists leave them out, and a request by name
      is refused.
    * `meanwhile`: called after each answer is made, before it is returned.
    """

    def __init__(self, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> None:
        self.isolation = isolation
        self.topics: dict[str, FakeTopic] = {}
        self.calls: list[str] = []
        """"describe", or "offsets" with the requested spec, such as "offsets latest"."""
        self.faults: deque[Exception | None] = deque()
        self.descriptions: deque[Mapping[StreamName, TopicDescription]] = deque()
        self.omitted: list[tuple[OffsetSpec, SystemStreamPartition]] = []
        self.hidden: set[str] = set()
        self.denied: set[str] = set()
        self.meanwhile: Callable[[], None] | None = None
        self._created = 0

    def retries(self) -> int:
        return 0

    # --- As planning sees it ------------------------------------------------------------------

    def describe(self, selection: Selection) -> Mapping[StreamName, TopicDescription]:
        self._call("describe")
        answer = self.descriptions.popleft() if self.descriptions else self._describe(selection)
        return self._after(answer)

    def list_offsets(
        self,
        partitions: Collection[SystemStreamPartition],
        point: OffsetSpec,
        *,
        uncommitted: bool = False,
    ) -> Mapping[SystemStreamPartition, int | None]:
        self._check_access(ssp.stream for ssp in partitions)
        self._call(f"offsets {point.time_ms if isinstance(point, AtTime) else point.value}")
        return self._after(
            {
                ssp: self._offset(log, point, uncommitted=uncommitted)
                for ssp in sorted(partitions)
                if (log := self._log(ssp)) is not None and not self._omits(point, ssp)
            }
        )

    def first_records(
        self, partitions: Collection[SystemStreamPartition], since_ms: EpochMillis
    ) -> Mapping[SystemStreamPartition, TimedOffset | None]:
        self._call(f"first records {since_ms}")
        return self._after(
            {
                ssp: log.first_record(since_ms, self.isolation)
                for ssp in sorted(partitions)
                if (log := self._log(ssp)) is not None
            }
        )

    # --- As a test changes it -----------------------------------------------------------------

    def create(self, partitions: int = 1, *, name: str | None = None) -> str:
        """Create a topic with a new id, and return its name."""
        self._created += 1
        topic = name or f"topic-{self._created}"
        assert topic not in self.topics, f"{topic} exists"
        self.topics[topic] = FakeTopic(
            topic_id=TopicId(f"id-{self._created}"), logs=[FakeLog() for _ in range(partitions)]
        )
        return topic

    def expand(self, topic: str, partitions: int) -> None:
        """Expand a topic to this partition count."""
        logs = self.topics[topic].logs
        assert partitions > len(logs), f"{topic} has {len(logs)} partitions"
        logs.extend(FakeLog() for _ in range(partitions - len(logs)))

    def delete(self, topic: str) -> None:
        del self.topics[topic]

    def put(self, topic: str, records: Iterable[Record]) -> list[Put]:
        """Append records and return their positions. One without a partition is assigned by its
        key, though not as in Java."""
        logs = self.topics[topic].logs
        put = []
        for record in records:
            partition = record.partition
            if partition is None:
                partition = zlib.crc32(record.key or b"") % len(logs)
            offset = len(logs[partition].records)
            logs[partition].records.append(record)
            put.append(Put(record=record, topic=topic, partition=partition, offset=offset))
        return put

    def fill(self, topic: str, *counts: int) -> None:
        """Append these numbers of records to partition 0, partition 1, and so on."""
        for partition, count in enumerate(counts):
            self.put(topic, [Record(value=b"", partition=partition)] * count)

    def expire(self, topic: str, partition: int, before: int) -> None:
        """Delete the records before an offset, as retention does."""
        self.topics[topic].logs[partition].start = before

    def log(self, ssp: SystemStreamPartition) -> FakeLog:
        """Return the log of an existing partition."""
        return self.topics[ssp.stream].logs[ssp.partition]

    # --- Inside -------------------------------------------------------------------------------

    def _call(self, name: str) -> None:
        self.calls.append(name)
        fault = self.faults.popleft() if self.faults else None
        if fault is not None:
            raise fault

    def _after(self, answer: T) -> T:
        if self.meanwhile is not None:
            self.meanwhile()
        return answer

    def _check_access(self, topics: Iterable[str]) -> None:
        for topic in sorted(self.denied & set(topics)):
            raise AccessError(
                f"topic {topic}",
                found="no permission",
                expected="Describe on the topic",
                next_step="grant it",
            )

    def _describe(self, selection: Selection) -> Mapping[StreamName, TopicDescription]:
        if isinstance(selection, Subscribe):
            self._check_access(selection.topics)
        elif isinstance(selection, Assign):
            self._check_access(ssp.stream for ssp in selection.partitions)
        return {
            StreamName(name): TopicDescription(
                topic_id=topic.topic_id, partition_count=len(topic.logs)
            )
            for name, topic in sorted(self.topics.items())
            if _selected(name, selection) and name not in self.hidden | self.denied
        }

    def _log(self, ssp: SystemStreamPartition) -> FakeLog | None:
        topic = self.topics.get(ssp.stream)
        if topic is None or ssp.stream in self.hidden or ssp.partition >= len(topic.logs):
            return None
        return topic.logs[ssp.partition]

    def _omits(self, point: OffsetSpec, ssp: SystemStreamPartition) -> bool:
        omitted = (point, ssp) in self.omitted
        if omitted:
            self.omitted.remove((point, ssp))
        return omitted

    def _offset(self, log: FakeLog, point: OffsetSpec, *, uncommitted: bool) -> int | None:
        isolation = IsolationLevel.READ_UNCOMMITTED if uncommitted else self.isolation
        match point:
            case LogicalOffset.EARLIEST:
                return log.start
            case LogicalOffset.LATEST:
                return log.end(isolation)
            case AtTime():
                return log.from_time(point.time_ms, isolation)


def _selected(topic: str, selection: Selection) -> bool:
    match selection:
        case Subscribe():
            return topic in selection.topics
        case SubscribePattern():
            return topic not in _INTERNAL and re.search(selection.pattern, topic) is not None
        case Assign():
            return any(ssp.stream == topic for ssp in selection.partitions)
