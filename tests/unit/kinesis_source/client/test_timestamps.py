"""The time of AT_TIMESTAMP in requests, with the installed botocore and with one that cuts it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest

from spark_ssp.kinesis_source.client.timestamps import register_exact_times

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


@pytest.mark.parametrize("cut", [True, False], ids=["cut", "as installed"])
def test_the_time_is_sent_with_its_milliseconds(cut: bool) -> None:
    client = boto3.session.Session().client(
        "kinesis", region_name="eu-west-1", aws_access_key_id="id", aws_secret_access_key="key"
    )
    events = client.meta.events
    if cut:
        events.register("before-call.kinesis.GetShardIterator", _cut)
    register_exact_times(events)
    bodies: list[bytes] = []

    def stop(request: Any, **_: object) -> None:
        bodies.append(request.body)
        raise ConnectionAbortedError

    events.register("before-send.kinesis", stop)
    for moment in (MOMENT, None):
        more: dict[str, Any] = {} if moment is None else {"Timestamp": moment}
        with pytest.raises(ConnectionAbortedError):
            client.get_shard_iterator(
                StreamName="orders", ShardId="s-0", ShardIteratorType="AT_TIMESTAMP", **more
            )
    client.close()
    exact, without = map(json.loads, bodies)
    assert without == {
        "StreamName": "orders",
        "ShardId": "s-0",
        "ShardIteratorType": "AT_TIMESTAMP",
    }
    assert exact == without | {"Timestamp": MOMENT.timestamp()}


def _cut(params: dict[str, Any], **_: object) -> None:
    """Cut the time to whole seconds, as botocore did before September 2026."""
    body = json.loads(params["body"])
    if "Timestamp" in body:
        params["body"] = json.dumps(body | {"Timestamp": int(body["Timestamp"])}).encode()
