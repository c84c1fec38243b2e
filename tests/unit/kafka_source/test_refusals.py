"""Which refusals a task takes no notice of."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from spark_ssp.common.errors import AccessError
from spark_ssp.grouping.identifiers import SystemStreamPartition
from spark_ssp.kafka_source.client.error_translation import error_kind, to_error
from spark_ssp.kafka_source.reading.arrow_batches import (
    RecordColumns,
    binary_column,
    integer_column,
)
from spark_ssp.kafka_source.reading.consumer_api import Event, ReadError, RecordRun
from spark_ssp.kafka_source.reading.pool import ConsumerPool
from tests.support.kafka.reading import TaskReading, part

RANGE = part("orders", 0, 0, 1)


class Refused:
    """A consumer of one record, which tells of a fault first."""

    buffered_bytes = 2

    def __init__(self, code: int) -> None:
        error = KafkaError(code)
        refusal = to_error(error, subject="the brokers")
        self.polls: list[list[Event]] = [
            [ReadError(ssp=None, kind=error_kind(error), error=refusal)],
            [RecordRun(ssp=RANGE.ssp, begin=0, offsets=[0])],
        ]
        self.buffered_rows = 0

    def assign(self, positions: Mapping[SystemStreamPartition, int]) -> None:
        assert positions in ({RANGE.ssp: 0}, {})

    def seek(self, ssp: SystemStreamPartition, offset: int) -> None:
        raise NotImplementedError

    def unassign(self, ssps: Sequence[SystemStreamPartition]) -> None:
        raise NotImplementedError

    def poll(self, limit: int, wait_s: float) -> Sequence[Event]:
        return self.polls.pop(0)

    def keep(self, run: RecordRun, kept: slice) -> None:
        self.buffered_rows += kept.stop - kept.start

    def take(self, most: int, header_bytes: float = 0.0) -> RecordColumns:
        self.buffered_rows = 0
        return RecordColumns(
            runs=[(RANGE.ssp, 1)],
            keys=binary_column([b"k"]),
            values=binary_column([b"v"]),
            offsets=integer_column(pa.int64(), array("q", [0])),
            times_ms=integer_column(pa.int64(), array("q", [0])),
            time_types=integer_column(pa.int32(), array("i", [0])),
        )

    def last_error(self) -> str | None:
        raise NotImplementedError

    def close(self) -> None:
        pass


def _values(code: int) -> list[object]:
    pool = ConsumerPool(create=lambda _key: Refused(code))
    reading = TaskReading({"kafka.bootstrap.servers": "127.0.0.1:1"}, pool)
    return [row["value"] for row in reading.rows(RANGE)]


@pytest.mark.parametrize("code", [KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._TRANSPORT])
def test_what_does_not_keep_from_reading_is_passed_over(code: int) -> None:
    assert _values(code) == [b"v"]


def test_a_topic_that_may_not_be_read_is_an_error_at_once() -> None:
    with pytest.raises(AccessError, match="TOPIC_AUTHORIZATION_FAILED"):
        _values(KafkaError.TOPIC_AUTHORIZATION_FAILED)
