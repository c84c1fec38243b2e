"""Errors of this project's own on the way to a subscription."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from spark_ssp.common.errors import AccessError
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.client.api import SubscriptionError
from spark_ssp.kinesis_source.client.subscriptions import Boto3Subscriber
from spark_ssp.kinesis_source.model.shard import ConsumerArn, TrimHorizon


class _Client:
    """A client whose credentials cannot be loaded."""

    meta = SimpleNamespace(events=SimpleNamespace(register=lambda *_, **__: None))

    def subscribe_to_shard(self, **_: object) -> NoReturn:
        raise AccessError("a provider", found="no keys", expected="keys", next_step="none")


def test_a_failed_provider_of_credentials_is_a_fault_of_the_subscription() -> None:
    client: Any = _Client()
    shard = ShardKey(stream=StreamName("orders"), shard=ShardId("shardId-000000000000"))
    with pytest.raises(SubscriptionError, match="no keys on SubscribeToShard") as fault:
        Boto3Subscriber(client).subscribe(ConsumerArn("arn"), shard, TrimHorizon())
    assert fault.value.code == AccessError.kind
