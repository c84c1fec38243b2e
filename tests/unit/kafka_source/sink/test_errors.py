"""What the sink says of rows and faults: the thing at fault, and a next step that helps."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from pyspark.sql.types import BinaryType, StructType

from spark_ssp.common.errors import InvalidRowsError, StreamNotFoundError, UnsupportedError
from spark_ssp.common.spark import batch_plan
from spark_ssp.kafka_source.sink import table_sink
from spark_ssp.kafka_source.sink.columns import SinkColumns, rows_of
from spark_ssp.kafka_source.sink.markers import Write
from spark_ssp.kafka_source.sink.producer import _delivery_error, _record_bytes
from spark_ssp.kafka_source.sink.table_sink import KafkaBatchWriter
from spark_ssp.kafka_source.sink.transactions import transaction_error

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _unchecked(binary: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return bytes as text, as Spark's cast does."""
    return pa.Array.from_buffers(type_, len(binary), binary.buffers(), binary.null_count)


@pytest.mark.parametrize("name", [b"a\0b", b"ssp-source\0z", b"\0", b"caf\xe9", b"\xff"])
@pytest.mark.parametrize("column", ["topic", "headers"])
@pytest.mark.parametrize("is_large", [False, True])
def test_a_name_that_is_no_text_or_that_the_client_would_cut_is_refused(
    name: bytes, column: str, is_large: bool
) -> None:
    """Cut, a key of a header could become that of another one, or a repeat header."""
    binary, text = (
        (pa.large_binary(), pa.large_string()) if is_large else (pa.binary(), pa.string())
    )
    topics = [b"orders", name if column == "topic" else b"orders", b"clicks"]
    keys = [b"a", name if column == "headers" else b"b", b"ssp-source", b"c"]
    headers = pa.StructArray.from_arrays(
        [_unchecked(pa.array(keys, binary), text), pa.array([b"1", b"2", b"3", None])],
        names=["key", "value"],
    )
    batch = pa.RecordBatch.from_arrays(
        [
            _unchecked(pa.array(topics, binary), text),
            pa.array([b"", None, b"v"]),
            pa.ListArray.from_arrays([0, 1, 2, 4], headers),
        ],
        names=["topic", "value", "headers"],
    )
    columns = SinkColumns(topic=0, value=1, headers=2)
    for part, topic, pairs in (
        (batch[:1], "orders", [("a", b"1")]),
        (batch[2:], "clicks", [("c", None)]),
    ):
        rows = rows_of(part, columns, None)
        assert (rows.count, rows.topics, rows.headers) == (1, [topic], [pairs]), "it has no such"
    with pytest.raises(InvalidRowsError, match=f"column {column}") as caught:
        rows_of(batch, columns, None)
    assert not any(content in str(caught.value) for content in ("caf", "0xe9", "0xff"))


class _Task:
    """A task with the local properties that Spark passes to it."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)

    def partitionId(self) -> int:
        return 7


_IN_QUERY = {
    "sql.streaming.queryId": "q",
    "streaming.sql.batchId": "3",
    batch_plan.ADAPTIVE_QUERY: "false",
}


@pytest.mark.parametrize(
    ("properties", "identity", "is_refused"),
    [
        (_IN_QUERY, {}, True),
        (_IN_QUERY, {"batchWriteId": "q:3"}, False),
        ({}, {}, False),  # a batch query, or a query over Spark Connect
    ],
)
def test_a_batch_of_a_query_is_written_exactly_once_only_with_its_identity(
    monkeypatch: pytest.MonkeyPatch,
    properties: Mapping[str, str],
    identity: Mapping[str, str],
    is_refused: bool,
) -> None:
    """With an id of each write, a batch that runs again would be another one."""
    written: list[Write] = []

    def write_in_transaction(*arguments: Any) -> int:
        written.append(arguments[3])
        return 0

    monkeypatch.setattr(table_sink, "check_properties", lambda _: None)
    monkeypatch.setattr(table_sink, "write_in_transaction", write_in_transaction)
    context = SimpleNamespace(get=lambda: _Task(properties))
    monkeypatch.setattr(batch_plan, "TaskContext", context)
    options = {"kafka.bootstrap.servers": "h:1", "topic": "t", **identity}

    def write(delivery: str) -> object:
        given = {**options, "deliveryGuarantee": delivery}
        writer = KafkaBatchWriter(given, StructType().add("value", BinaryType()))
        return writer.write(iter(()))

    if not is_refused:
        write("exactly-once")
        assert [(one.task, one.batch) for one in written] == [(7, 3 if identity else 0)]
        return
    with pytest.raises(UnsupportedError) as caught:
        write("exactly-once")
    assert "batchWriteId" in caught.value.next_step
    assert not written
    monkeypatch.setattr(table_sink, "write_rows", lambda *_: 0)
    write("at-least-once")


def test_headers_count_for_the_size_of_a_record() -> None:
    assert _record_bytes(None, b"v", [("é", b"xx"), ("k", None)]) == 1 + 4 + 1


def test_a_topic_that_is_missing_is_to_be_created() -> None:
    """In place of the advice for a source, to start on a new checkpoint."""
    fault = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    write = Write(sink="s", task=0, batch=3)
    in_transaction = transaction_error(
        write, fault, open_s=None, limit_s=60, topic="markers", secrets=()
    )
    for error in (_delivery_error(fault, "topic orders", None, ()), in_transaction):
        assert isinstance(error, StreamNotFoundError)
        assert (error.next_step or "").startswith("create it")
    assert "a topic of the rows" in in_transaction.subject


def test_a_timeout_beyond_that_of_the_brokers_is_named() -> None:
    fault = KafkaError(KafkaError.INVALID_TRANSACTION_TIMEOUT)
    write = Write(sink="s", task=0, batch=3)
    error = transaction_error(write, fault, open_s=None, limit_s=60, topic="m", secrets=())
    assert "kafka.transaction.timeout.ms" in error.expected


@pytest.mark.parametrize(
    ("value", "is_off"),
    [("false", True), ("False", True), (" FALSE ", True), ("true", False), (None, False)],
)
def test_a_setting_is_off_as_spark_reads_it(
    monkeypatch: pytest.MonkeyPatch, value: str | None, is_off: bool
) -> None:
    properties = {} if value is None else {batch_plan.ADAPTIVE_QUERY: value}
    monkeypatch.setattr(batch_plan, "_task", lambda: _Task(properties))
    if is_off:
        batch_plan.require_fixed_division("deliveryGuarantee", by_batch_writes=True)
    else:
        with pytest.raises(UnsupportedError):
            batch_plan.require_fixed_division("deliveryGuarantee", by_batch_writes=True)
