"""The Kinesis API reference, asserted over boto3: modes, distribution strategies, DryRun."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from spark_ssp.operations.acceptance import rules
from tests.contract.services import FIRST, MIDDLE, SECOND, Quirk, Service, refusal

if TYPE_CHECKING:
    from types_boto3_kinesis.literals import RecordDistributionStrategyType
    from types_boto3_kinesis.type_defs import PutRecordsRequestEntryTypeDef

_NUMBERS = count()


def on_demand(service: Service, **more: Any) -> str:
    """The name of a new on-demand stream."""
    name = f"on-demand-{next(_NUMBERS)}"
    service.client.create_stream(
        StreamName=name, StreamModeDetails={"StreamMode": "ON_DEMAND"}, **more
    )
    service.settled(name)
    return name


def switch(service: Service, stream: str, strategy: RecordDistributionStrategyType) -> None:
    service.client.update_stream_record_distribution_strategy(
        StreamARN=service.summary(stream)["StreamARN"], RecordDistributionStrategy=strategy
    )


def shards_of(service: Service, stream: str, records: int) -> list[str]:
    """Return the shards that take `records` records of one key."""
    return [
        service.client.put_record(StreamName=stream, PartitionKey="k", Data=b"x")["ShardId"]
        for _ in range(records)
    ]


def test_the_strategy_places_the_records_that_come_after_the_switch(service: Service) -> None:
    stream = on_demand(service)
    if service.has(Quirk.KEYS_PLACE_ALL_RECORDS):
        assert "RecordDistributionStrategy" not in service.summary(stream)
        with pytest.raises(ClientError):
            switch(service, stream, "AUTO")
        return
    assert service.summary(stream)["RecordDistributionStrategy"] == "USER_PARTITION_KEY"
    (home,) = set(shards_of(service, stream, 8))
    switch(service, stream, "AUTO")
    assert service.summary(stream)["RecordDistributionStrategy"] == "AUTO"
    found = shards_of(service, stream, 8)
    opened = service.open_shards(stream)
    assert list(rules.auto_spreads_a_key(found, opened)) == []
    assert sorted(found) == sorted(opened * 2)
    switch(service, stream, "USER_PARTITION_KEY")
    assert set(shards_of(service, stream, 8)) == {home}
    kept = {shard: len(service.read(stream, shard)) for shard in service.open_shards(stream)}
    assert kept == {shard: 16 * (shard == home) + 2 for shard in kept}, "nothing is moved"


def test_under_auto_a_record_needs_no_key(service: Service) -> None:
    if service.has(Quirk.KEYS_PLACE_ALL_RECORDS):
        return
    stream = on_demand(service, RecordDistributionStrategy="AUTO")
    put = service.client.put_record(StreamName=stream, Data=b"alone")
    entries: list[PutRecordsRequestEntryTypeDef] = [
        {"Data": b"bare"},
        {"Data": b"keyed", "PartitionKey": "k", "ExplicitHashKey": "0"},
    ]
    answer = service.client.put_records(StreamName=stream, Records=entries)
    shards = [put["ShardId"], *(result["ShardId"] for result in answer["Records"])]
    assert len(set(shards)) == 3, "neither key places a record"
    found = {}
    for shard in shards:
        (record,) = service.page(service.iterator(stream, shard))["Records"]
        found[record["Data"]] = record.get("PartitionKey", "none")
    assert found == {b"alone": "none", b"bare": "none", b"keyed": "k"}


def test_otherwise_a_record_needs_a_key(service: Service) -> None:
    stream = service.stream()
    bare: list[PutRecordsRequestEntryTypeDef] = [{"Data": b"x"}]
    for call, body in (
        (service.client.put_record, {"Data": b"x"}),
        (service.client.put_records, {"Records": bare}),
    ):
        with pytest.raises(ClientError):
            call(StreamName=stream, **body)
    assert service.read(stream) == ""


def test_a_provisioned_stream_has_no_strategy(service: Service) -> None:
    stream = service.stream()
    assert "RecordDistributionStrategy" not in service.summary(stream)
    if service.has(Quirk.KEYS_PLACE_ALL_RECORDS):
        return
    with pytest.raises(ClientError, match="InvalidArgumentException"):
        switch(service, stream, "AUTO")
    created = refusal(
        service.client.create_stream,
        StreamName="never",
        ShardCount=1,
        RecordDistributionStrategy="AUTO",
    )
    assert created == "InvalidArgumentException"


def test_the_mode_of_a_stream_changes(service: Service) -> None:
    stream = service.stream(2)
    arn = service.summary(stream)["StreamARN"]
    update = service.client.update_stream_mode
    update(StreamARN=arn, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    service.settled(stream)
    assert service.summary(stream)["StreamModeDetails"] == {"StreamMode": "ON_DEMAND"}
    update(StreamARN=arn, StreamModeDetails={"StreamMode": "PROVISIONED"})
    service.settled(stream)
    assert service.summary(stream)["StreamModeDetails"] == {"StreamMode": "PROVISIONED"}


def test_the_service_alone_reshards_an_on_demand_stream(service: Service) -> None:
    stream = on_demand(service)
    if service.has(Quirk.ON_DEMAND_IS_RESHARDED):
        first = service.open_shards(stream)[0]
        at = int(service.shards(stream)[first]["HashKeyRange"]["EndingHashKey"]) // 2
        assert len(service.split(stream, first, at)) == 2
        return
    client = service.client
    split: dict[str, Any] = {"ShardToSplit": FIRST, "NewStartingHashKey": str(MIDDLE)}
    merge: dict[str, Any] = {"ShardToMerge": FIRST, "AdjacentShardToMerge": SECOND}
    scale: dict[str, Any] = {"TargetShardCount": 8, "ScalingType": "UNIFORM_SCALING"}
    for call, body in (
        (client.split_shard, split),
        (client.merge_shards, merge),
        (client.update_shard_count, scale),
    ):
        assert refusal(call, StreamName=stream, **body) == "ValidationException"


def test_a_dry_run_changes_nothing(service: Service) -> None:
    stream = service.stream()
    service.put(stream, "a")
    client, token = service.client, service.iterator(stream)
    entries: list[PutRecordsRequestEntryTypeDef] = [{"Data": b"b", "PartitionKey": "k"}]
    here: dict[str, Any] = {"StreamName": stream}
    calls: list[tuple[Any, dict[str, Any]]] = [
        (client.put_record, here | {"Data": b"b", "PartitionKey": "k"}),
        (client.put_records, here | {"Records": entries}),
        (client.get_shard_iterator, here | {"ShardId": FIRST, "ShardIteratorType": "LATEST"}),
        (client.get_records, {"ShardIterator": token}),
    ]
    if service.has(Quirk.NO_DRY_RUN):
        for call, body in calls:
            call(**body, DryRun=True)
        assert service.read(stream) == "abb"
        return
    for call, body in calls:
        assert refusal(call, **body, DryRun=True) == "DryRunOperationException"
    assert service.read(stream) == "a"
    absent = calls[2][1] | {"ShardId": SECOND}
    assert refusal(client.get_shard_iterator, **absent, DryRun=True) == "ResourceNotFoundException"


def test_the_largest_record_is_set_for_each_stream(service: Service) -> None:
    stream = service.stream()
    summary = service.summary(stream)
    update = service.client.update_max_record_size
    if service.has(Quirk.RECORD_SIZE_IS_NOT_TOLD):
        assert "MaxRecordSizeInKiB" not in summary
        return
    assert summary["MaxRecordSizeInKiB"] == 1024
    put = service.client.put_record
    large = {"StreamName": stream, "PartitionKey": "k", "Data": b"x" * (2 << 20)}
    assert refusal(put, **large) == "InvalidArgumentException"
    update(StreamARN=summary["StreamARN"], MaxRecordSizeInKiB=10_240)
    service.settled(stream)
    assert service.summary(stream)["MaxRecordSizeInKiB"] == 10_240
    put(**large)  # type: ignore[arg-type]
    assert len(service.page(service.iterator(stream))["Records"]) == 1
