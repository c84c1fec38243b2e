"""The Kafka source with parts of its native consumer replaced by the client's public functions."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, MutableMapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka.cimpl
import numpy as np
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_kafka_ssp import DefaultSource
from spark_ssp.kafka_source.reading.arrow_batches import headers_column, headers_from_counts
from spark_ssp.kafka_source.reading.confluent_consumer import ConfluentConsumer
from spark_ssp.kafka_source.reading.librdkafka import (
    NO_ENTRY,
    MessageHeaders,
    MessageTimes,
    Words,
    gather_column,
)
from spark_ssp.kafka_source.reading.pool import (
    PROCESS_POOL,
    ConsumerKey,
    consumer_settings,
    open_consumer,
)
from spark_ssp.kafka_source.source import KafkaBatchReader

if TYPE_CHECKING:
    import pyarrow as pa

NATIVE: Final = "native"
"""The unchanged source."""
TIMESTAMPS: Final = "timestamps"
"""Timestamps by `rd_kafka_message_timestamp`."""
HEADERS: Final = "headers"
"""Headers by `rd_kafka_message_headers` and `rd_kafka_header_get_all`."""
CONFLUENT: Final = "confluent"
"""All by confluent-kafka's consumer."""

_NATIVE_HEADERS: Final = MessageHeaders.of


class VariantSource(DefaultSource):
    """`kafka-ssp`, and an option `variant`. Batch queries only."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__({name: options[name] for name in options if name != "variant"})
        self._variant = options.get("variant", NATIVE)

    @classmethod
    def name(cls) -> str:
        return "kafka-variant"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self._options, self._variant)


class _Reader(KafkaBatchReader):
    def __init__(self, options: MutableMapping[str, str], variant: str) -> None:
        super().__init__(options)
        self._variant = variant

    def read(self, partition: InputPartition) -> Iterator[Any]:
        _apply(self._variant)
        return super().read(partition)


def _apply(variant: str) -> None:
    """Set the variant in this worker process, which may have read another one before."""
    MessageTimes._mismatch = variant == TIMESTAMPS
    setattr(MessageHeaders, "of", _public_headers if variant == HEADERS else _NATIVE_HEADERS)  # noqa: B010
    PROCESS_POOL.create = _confluent if variant == CONFLUENT else open_consumer


def _confluent(key: ConsumerKey) -> ConfluentConsumer:
    return ConfluentConsumer(key.client, consumer_settings(key))


@cache
def _functions() -> tuple[Any, ...]:
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library = ctypes.PyDLL(confluent_kafka.cimpl.__file__)

    def function(found: Any, result: Any, *arguments: Any) -> Any:
        found.restype, found.argtypes = result, arguments
        return found

    return (
        function(library["rd_kafka_message_headers"], ctypes.c_int, pointer, pointer),
        function(library["rd_kafka_header_cnt"], size, pointer),
        function(library["rd_kafka_header_get_all"], ctypes.c_int, pointer, size, *[pointer] * 3),
        function(ctypes.PyDLL(None)["strlen"], size, pointer),
    )


def _public_headers(_: MessageHeaders, addresses: Words, *__: object) -> pa.Array:
    """Replace `MessageHeaders.of`: each function is called by `map` for all messages, without a
    Python object for a header."""
    headers_of_message, count_of, get, length_of = _functions()
    rows = len(addresses)
    lists = np.zeros(rows, np.int64)
    codes = np.fromiter(map(headers_of_message, addresses.tolist(), _places(lists)), np.int32, rows)
    if not np.isin(codes, (0, NO_ENTRY)).all():
        raise ValueError("headers that the client cannot read")
    some = lists[codes == 0]
    if not len(some):
        return headers_column([None] * rows)
    found = np.fromiter(map(count_of, some.tolist()), np.int64, len(some))
    counts = np.zeros(rows, np.int64)
    counts[codes == 0] = found
    total = int(found.sum())
    indexes = np.arange(total) - np.repeat(np.cumsum(found) - found, found)
    names, values, sizes = (np.zeros(total, np.int64) for _ in range(3))
    errors = map(
        get,
        np.repeat(some, found).tolist(),
        indexes.tolist(),
        _places(names),
        _places(values),
        _places(sizes),
    )
    if any(errors):
        raise ValueError("headers that the client cannot read")
    lengths = np.fromiter(map(length_of, names.tolist()), np.int64, total)
    return headers_from_counts(
        counts,
        gather_column(names, lengths),
        gather_column(values, np.where(values == 0, 0, sizes)),
    )


def _places(words: Words) -> range:
    """The address of each word."""
    first = words.ctypes.data
    return range(first, first + words.nbytes, words.itemsize)
