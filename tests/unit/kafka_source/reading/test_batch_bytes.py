"""Arrow batches stay within their bytes when the headers of records grow, with both consumers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Message

from spark_ssp.common.columns import Column
from spark_ssp.kafka_source.client.api import KafkaService
from spark_ssp.kafka_source.reading.confluent_consumer import ConfluentConsumer
from spark_ssp.kafka_source.reading.consumer_api import PartitionConsumer
from spark_ssp.kafka_source.reading.librdkafka import (
    _HEADER_BYTES_OFFSET,
    NO_ENTRY,
    OFFSET,
    REQUIRED_MESSAGES,
    TOPIC,
    VALUE,
    VALUE_LENGTH,
    WORD,
    MessageHeaders,
)
from spark_ssp.kafka_source.reading.native_consumer import NativeConsumer
from spark_ssp.kafka_source.reading.progress import RangeProgress
from spark_ssp.kafka_source.reading.task_reader import BATCH_BYTES, POLL_BYTES, GenerationReader
from tests.support.fakes.clocks import ManualTime
from tests.support.kafka.driving import kafka_options
from tests.support.kafka.reading import part, task
from tests.unit.kafka_source.reading.test_header_decoder import encoded

SMALL, LARGE = 10, 50_000
SIZES = [SMALL] * 100 + [LARGE] * 300
"""The bytes of each record's only header."""
ORDERS = part("orders", 0, 0, len(SIZES))
COLUMNS = [Column(name) for name in ("offset", "value", "headers")]
CLIENT = kafka_options().client


class MemoryLibrary:
    """librdkafka with these messages in memory, at most `at_once` of them for a poll."""

    def __init__(self, sizes: Sequence[int], at_once: int) -> None:
        bodies = [b"v" + encoded([(b"h", bytes(size))]) for size in sizes]
        self._bodies = np.frombuffer(b"".join(bodies), np.uint8)
        self._sizes, self._at_once, self._at = sizes, at_once, 0
        self.asked = 0
        """The messages whose headers were read by a function."""
        self._name = ctypes.create_string_buffer(b"h")
        lengths = np.array([len(body) for body in bodies])
        ends = np.cumsum(lengths)
        self._ends = self._bodies.ctypes.data + ends
        headers = _HEADER_BYTES_OFFSET // WORD
        self._messages = np.zeros((len(sizes), headers + 2), np.int64)
        self._messages[:, TOPIC] = 1
        self._messages[:, OFFSET] = np.arange(len(sizes))
        self._messages[:, VALUE] = self._ends - lengths
        self._messages[:, VALUE_LENGTH] = 1
        self._messages[:, headers] = lengths - 1
        self._messages[:, headers + 1] = self._ends - lengths + 1
        first, self._width = self._messages.ctypes.data, self._messages.strides[0]
        self._addresses = first + self._width * np.arange(len(sizes))

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_: 0

    def new(self, *_: object) -> int:
        return 1

    def topic_name(self, _: int) -> bytes:
        return b"orders"

    def consume_batch_queue(self, _: int, __: int, place: int, limit: int) -> int:
        found = self._addresses[self._at : self._at + min(limit, self._at_once)]
        ctypes.memmove(place, found.ctypes.data, found.nbytes)
        self._at += len(found)
        return len(found)

    def message_headers(self, address: int, found: int) -> int:
        self.asked += 1
        ctypes.c_void_p.from_address(found).value = address
        return 0

    def header_get_all(self, where: int, index: int, name: int, value: int, size: int) -> int:
        if index:
            return NO_ENTRY
        row = (where - self._messages.ctypes.data) // self._width
        ctypes.c_void_p.from_address(name).value = ctypes.addressof(self._name)
        ctypes.c_void_p.from_address(value).value = int(self._ends[row]) - self._sizes[row]
        ctypes.c_size_t.from_address(size).value = self._sizes[row]
        return 0


class Messages:
    """confluent-kafka's consumer with these messages, at most `at_once` of them for a poll."""

    def __init__(self, sizes: Sequence[int], at_once: int) -> None:
        self._messages: list[Any] = [
            Message(
                topic="orders", partition=0, offset=offset, value=b"v", headers=[("h", bytes(size))]
            )
            for offset, size in enumerate(sizes)
        ]
        self._at_once = at_once

    def assign(self, _: object) -> None:
        pass

    def consume(self, limit: int, _: float) -> list[Any]:
        count = min(limit, self._at_once)
        found, self._messages = self._messages[:count], self._messages[count:]
        return found


def from_memory(at_once: int) -> PartitionConsumer:
    library: Any = MemoryLibrary(SIZES, at_once)
    return NativeConsumer(library, CLIENT, {})


def from_messages(at_once: int) -> PartitionConsumer:
    consumer = ConfluentConsumer(CLIENT, {"group.id": "test"})
    consumer._consumer.close()
    consumer._consumer = Messages(SIZES, at_once)  # type: ignore[assignment]
    return consumer


def no_service() -> KafkaService:
    raise AssertionError("nothing stands still")


def read_all(consumer: PartitionConsumer) -> list[list[dict[str, Any]]]:
    """Return the rows of each batch."""
    time = ManualTime()
    reader = GenerationReader(
        task=task(ORDERS),
        options=kafka_options(),
        columns=COLUMNS,
        progress=RangeProgress([ORDERS]),
        consumer=consumer,
        service=no_service,
        monotonic=time.monotonic,
        sleep=time.sleep,
    )
    return [batch.to_pylist() for batch in reader.read()]


@pytest.mark.parametrize("is_mismatch", [False, True])
def test_of_the_first_batch_only_the_headers_that_are_compared_are_read_both_ways(
    is_mismatch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MessageHeaders, "_agreed", 0)
    monkeypatch.setattr(MessageHeaders, "_mismatch", False)
    if is_mismatch:
        monkeypatch.setattr(MessageHeaders, "read_memory", lambda *_: None)
    library: Any = MemoryLibrary(SIZES, len(SIZES))
    rows = [row for batch in read_all(NativeConsumer(library, CLIENT, {})) for row in batch]
    assert [len(row["headers"][0]["value"]) for row in rows] == SIZES
    assert library.asked == (len(SIZES) if is_mismatch else REQUIRED_MESSAGES)


@pytest.mark.parametrize("at_once", [50, 10_000])
@pytest.mark.parametrize(
    ("opened", "is_mismatch"),
    [(from_memory, False), (from_memory, True), (from_messages, False)],
    ids=["memory", "functions", "messages"],
)
def test_no_batch_is_larger_because_headers_have_grown(
    opened: Callable[[int], PartitionConsumer],
    is_mismatch: bool,
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MessageHeaders, "_agreed", REQUIRED_MESSAGES)
    monkeypatch.setattr(MessageHeaders, "_mismatch", is_mismatch)
    batches = read_all(opened(at_once))
    rows = [row for batch in batches for row in batch]
    assert [row["offset"] for row in rows] == list(range(len(SIZES)))
    assert [row["headers"] for row in rows] == [[{"key": "h", "value": bytes(n)}] for n in SIZES]
    sizes = [sum(2 + len(row["headers"][0]["value"]) for row in batch) for batch in batches]
    assert max(sizes) <= min(POLL_BYTES, BATCH_BYTES + at_once * LARGE)
    assert len(batches) < 10
