"""The topics that both sources read: one of every kind of record and of every kind of log."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from spark_ssp.kafka_source.client.admin_connection import AdminClient
from tests.support.kafka.topics import KafkaTopics, Record, produce
from tests.support.waiting import until

FIRST_MS: Final = 1_700_000_000_123
"""The creation time of the first record of `mixed`; each further one is STEP_MS later."""
STEP_MS: Final = 1_000

_FOREVER: Final = {"retention.ms": "-1"}
_DEADLINE_S: Final = 60
_POLL_S: Final = 0.1
_TRANSACTION_MS: Final = "600000"
_AT_ONCE: Final = {"enable_idempotence": "false"}
"""An idempotent producer takes half a second to begin."""

_HEADERS: Final = (
    (),
    (("trace", b"a1"),),
    (("same", b"1"), ("same", b"2"), ("none", None), ("empty", b""), ("\u00fc\u2713", b"\xff")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityTopics:
    """The topics' names."""

    mixed: str
    """Three partitions, 20 records each at 0, 1, 2 ... by turns; every compression."""
    stamped: str
    """Two partitions; the broker's times."""
    compacted: str
    """One partition with gaps where records were overwritten."""
    transactions: str
    """Two partitions: committed, aborted, committed, of no transaction, and one still open."""
    trimmed: str
    """Two partitions of 10: of the first the oldest 4 are gone, of the second all."""
    empty: str
    """Two partitions."""


def mixed_records() -> list[Record]:
    """Return every combination of keys, values and headers that are present, empty or null."""
    keys = (b"key", None, b"", b"\x00\xff")
    values = (b"value", None, b"", "gr\u00fc\u00df".encode(), b"\x80" * 40_000)
    return [
        Record(
            key=keys[number % 4],
            value=values[number % 5],
            headers=_HEADERS[(number // 3) % 3],
            partition=number % 3,
            time_ms=FIRST_MS + number * STEP_MS,
        )
        for number in range(60)
    ]


@contextmanager
def parity_topics(topics: KafkaTopics, brokers: str) -> Iterator[ParityTopics]:
    """All of them, filled; one transaction stays open until the block ends."""
    found = ParityTopics(
        mixed=topics.create(3, config=_FOREVER),
        stamped=topics.create(2, config={"message.timestamp.type": "LogAppendTime"}),
        compacted=topics.create(1, config=_compacting()),
        transactions=topics.create(2),
        trimmed=topics.create(2),
        empty=topics.create(2),
    )
    _fill_mixed(topics, found.mixed)
    topics.put(found.stamped, _numbered(10, 2), **_AT_ONCE)
    topics.put(found.trimmed, _numbered(20, 2), **_AT_ONCE)
    trim(brokers, found.trimmed, {0: 4, 1: 10})
    _fill_compacted(topics, found.compacted)
    open_one = _fill_transactions(topics, brokers, found.transactions)
    wait_for_gaps(brokers, found.compacted)
    yield found
    open_one.abort_transaction(_DEADLINE_S)


def _numbered(count: int, partitions: int) -> list[Record]:
    return [
        Record(key=b"%d" % number, value=b"%d" % number, partition=number % partitions)
        for number in range(count)
    ]


def _fill_mixed(topics: KafkaTopics, topic: str) -> None:
    records = mixed_records()
    for index, compression in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        topics.put(
            topic, records[index * 12 : index * 12 + 12], compression_type=compression, **_AT_ONCE
        )


def trim(brokers: str, topic: str, before: dict[int, int]) -> None:
    """Delete each partition's records before an offset."""
    admin = AdminClient({"bootstrap.servers": brokers})
    wanted = [TopicPartition(topic, number, offset) for number, offset in before.items()]
    for future in admin.delete_records(wanted).values():
        future.result(_DEADLINE_S)


# --- A compacted topic ----------------------------------------------------------------------------


def _compacting() -> dict[str, str]:
    return {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        # By the records' times: each put below begins a segment. The newest is never cleaned.
        "segment.ms": "1000",
        "retention.ms": "-1",
        "delete.retention.ms": "600000",
    }


def _fill_compacted(topics: KafkaTopics, topic: str) -> None:
    """Twelve records of four keys each time; then a tombstone, and one record behind it."""
    for turn in range(3):
        topics.put(
            topic,
            [
                Record(
                    key=b"k%d" % (number % 4),
                    value=b"%d.%d" % (turn, number),
                    time_ms=FIRST_MS + turn * 60_000,
                )
                for number in range(12)
            ],
            **_AT_ONCE,
        )
    tombstone = Record(key=b"k1", value=None, time_ms=FIRST_MS + 180_000)
    last = Record(key=b"last", value=b"1", time_ms=FIRST_MS + 240_000)
    for record in (tombstone, last):
        topics.put(topic, [record], **_AT_ONCE)


def wait_for_gaps(brokers: str, topic: str) -> None:
    """Until the cleaner has run over all but the last segment: one record of each key is left."""
    deadline = time.monotonic() + _DEADLINE_S
    while (offsets := offsets_in(brokers, topic)) != (32, 34, 35, 36, 37):
        assert time.monotonic() < deadline, f"not compacted: {offsets}"
        time.sleep(_POLL_S)


def offsets_in(brokers: str, topic: str) -> tuple[int, ...]:
    """Of partition 0, the offsets that a consumer meets."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "parity",
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[int] = []
        while True:
            message = consumer.poll(_DEADLINE_S)
            assert message is not None
            if message.error() is not None:
                return tuple(found)  # the end of the partition
            offset = message.offset()
            assert offset is not None
            found.append(offset)
    finally:
        consumer.close()


# --- Transactions ---------------------------------------------------------------------------------


def _fill_transactions(topics: KafkaTopics, brokers: str, topic: str) -> Producer:
    """The producer whose transaction is open."""
    producer = _transactional(brokers, topic)
    for turn, commits in enumerate((True, False, True, False)):
        producer.begin_transaction()
        produce(producer, topic, _of_turn(turn, 8))
        if commits:
            producer.commit_transaction(_DEADLINE_S)
        else:
            producer.abort_transaction(_DEADLINE_S)
    # The last mark is in the log a moment after the answer; later records must come after it.
    until(
        lambda: _ends(brokers, topic, committed=True) == _ends(brokers, topic, committed=False),
        "no transaction is open",
    )
    topics.put(topic, _of_turn(4, 4), **_AT_ONCE)
    producer.begin_transaction()
    produce(producer, topic, [Record(value=b"open", partition=0)])
    topics.put(topic, _of_turn(5, 4), **_AT_ONCE)
    return producer


def _ends(brokers: str, topic: str, *, committed: bool) -> list[int]:
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    admin = AdminClient({"bootstrap.servers": brokers})
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, number): latest for number in range(2)}
    futures = admin.list_offsets(asked, isolation_level=level)
    return [future.result(_DEADLINE_S).offset for future in futures.values()]


def _transactional(brokers: str, topic: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": brokers,
            "transactional.id": topic,
            "log_level": "0",
            "transaction.timeout.ms": _TRANSACTION_MS,
        }
    )
    producer.init_transactions(_DEADLINE_S)
    return producer


def _of_turn(turn: int, count: int) -> list[Record]:
    return [
        Record(key=b"%d" % turn, value=b"%d.%d" % (turn, number), partition=number % 2)
        for number in range(count)
    ]


# --- JSON of options ------------------------------------------------------------------------------


def by_partition_json(topic: str, *values: int) -> str:
    """A value for each of the partitions 0, 1, 2 ... of one topic."""
    return json.dumps({topic: {str(number): value for number, value in enumerate(values)}})
