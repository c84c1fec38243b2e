"""The counts of a stream reader in its status."""

from __future__ import annotations

import pytest

from spark_ssp.kinesis_source.client import boto3_client
from spark_ssp.kinesis_source.source import KinesisStreamReader
from spark_ssp.testing.kinesis import KinesisState, ManualClock
from tests.support.fakes.in_process import InProcessKinesis
from tests.support.kinesis.planning import shard_id

OPTIONS = {
    "streamName": "orders",
    "region": "us-east-1",
    "startingPosition": "trim_horizon",
    "minFetchPeriod": "200ms",
    "trigger": "processingTime",
    "awsAccessKeyId": "AKIAIOSFODNN7EXAMPLE",
    "awsSecretAccessKey": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
}


def test_a_reshard_is_counted_and_its_shards_are_listed_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    state = KinesisState(clock=clock)
    state.create_stream("orders", 2)
    monkeypatch.setattr(boto3_client, "connect", lambda _: InProcessKinesis(state))
    reader = KinesisStreamReader(OPTIONS)

    def put(count: int) -> None:
        for number in range(count):
            state.put("orders", str(number), b"data")

    put(50)
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    state.split("orders", shard_id(0))
    entries = []
    for _ in range(6):
        clock.advance(20_000)
        put(10)
        start = reader.latestOffset(start, reader.getDefaultReadLimit())
        report = reader.reportLatestOffset()
        assert report is not None
        entries.append(report["orders"])
    assert {"open": 1, "closed": 0, "waiting": 0, "ended": 1} in [one["shards"] for one in entries]
    last = entries[-1]
    assert last["shards"] == {"open": 3, "closed": 0, "waiting": 0, "ended": 0}
    assert last["parents"] == {shard_id(2): [shard_id(0)], shard_id(3): [shard_id(0)]}
    assert last["counters"]["reshards"] == 1
    reader.stop()
