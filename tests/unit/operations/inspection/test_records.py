"""When `tail --no-follow` ends."""

from __future__ import annotations

from typing import Any

import pytest

from spark_ssp.grouping.identifiers import EpochMillis, SequenceNumber, ShardId, StreamName
from spark_ssp.kinesis_source.model.shard import RecordPage, ShardIterator, StreamRef
from spark_ssp.operations.inspection import records
from spark_ssp.operations.inspection.records import KinesisTail, Start


@pytest.mark.parametrize("lag_ms", [0, 500])
def test_a_busy_shard_is_caught_up_once_a_record_is_newer_than_the_first_read(
    monkeypatch: pytest.MonkeyPatch, lag_ms: int
) -> None:
    """Records arrive as fast as they are read: the lag may never be 0."""

    class Service:
        now = EpochMillis(1_000_000)

        def list_shards(self, _: StreamRef) -> list[Any]:
            class Listed:
                shard_id = ShardId("shardId-000000000000")
                parents = ()

            return [Listed]

        def open_iterator(self, *_: object, **__: object) -> ShardIterator:
            return ShardIterator("1")

        def get_records(self, *_: object, **__: object) -> RecordPage:
            self.now = EpochMillis(self.now + 1_000)
            return RecordPage(
                sequence_numbers=[SequenceNumber(str(self.now))],
                partition_keys=["k"],
                arrival_ms=[EpochMillis(self.now - lag_ms)],
                data=[b""],
                next_iterator=ShardIterator("1"),
                millis_behind_latest=lag_ms,
                service_time=self.now,
            )

    monkeypatch.setattr(records, "connect", lambda _: Service())
    connection: Any = None
    tail = KinesisTail(StreamRef(name=StreamName("orders")), connection, Start())
    assert [tail.read().is_caught_up for _ in range(3)] == [False, True, True]
