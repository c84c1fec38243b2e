"""`spark-ssp checkpoint` with services: S3, a listed stream, a described topic; it only reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from spark_ssp.grouping.assignment import NO_ASSIGNMENT, GroupByPartition
from spark_ssp.grouping.fixed_tasks import FixedTasks
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.model.offset import Offset, encode
from spark_ssp.kafka_source.model.topic import partition_of
from spark_ssp.kinesis_source.client.boto3_client import disconnect
from spark_ssp.kinesis_source.model.shard import (
    CLOCK_UNCERTAINTY_MS,
    AfterRecord,
    SequenceNumber,
    TrimHorizon,
)
from spark_ssp.operations.inspection.topics import describe_topics
from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.contract.operations.conftest import Cloud
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.operations.checkpoints import WrittenCheckpoint, kinesis_end
from tests.support.operations.command import run
from tests.support.servers.kafka_broker import KafkaBroker

CHECKPOINTS = Path(__file__).parents[2] / "golden" / "checkpoints"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


@pytest.fixture
def stream() -> Iterator[EmbeddedKinesis]:
    """A stream `orders` of two shards, the first of them split."""
    with EmbeddedKinesis() as kinesis:
        kinesis.state.create_stream("orders", shards=2)
        client = boto3.client("kinesis", **kinesis.client_settings())
        client.split_shard(
            StreamName="orders",
            ShardToSplit="shardId-000000000000",
            NewStartingHashKey=str(1 << 126),
        )
        client.close()
        yield kinesis
        disconnect()


def _connected(kinesis: EmbeddedKinesis) -> list[str]:
    return ["--endpoint-url", kinesis.endpoint_url, "--region", "us-east-1"]


def _created(kinesis: EmbeddedKinesis) -> int:
    client = boto3.client("kinesis", **kinesis.client_settings())
    found = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]
    client.close()
    return round(found["StreamCreationTimestamp"].timestamp() * 1000)


def _checkpoint(folder: Path, offset: dict[str, Any]) -> Path:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"q"}')
    (folder / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(offset)}\n")
    (folder / "commits" / "0").write_text("v1\n{}\n")
    return folder


def _offset(kinesis: EmbeddedKinesis, shards: dict[str, Any], **stream: Any) -> dict[str, Any]:
    entry = {"created": _created(kinesis), **stream}
    return {"v": 1, "slots": 1, "streams": {"orders": entry}, "ssp": {"0": {"orders": shards}}}


AFTER = {"after": "49646437577130777162115407029007359695905360800546553874", "sub": 3}


def test_every_listed_shard_gets_a_start(stream: EmbeddedKinesis, tmp_path: Path) -> None:
    """One that is read to its end: nothing; its unread children: from their beginning."""
    shards = {"shardId-000000000000": {"at": "SHARD_END"}, "shardId-000000000001": AFTER}
    path = _checkpoint(tmp_path / "c", _offset(stream, shards))
    stream.calls.reset()
    found = run(
        "checkpoint", str(path), "--as-starting-position", *_connected(stream), environment=KEYS
    )
    options = found.document()
    assert options["streamName"] == "orders"
    assert json.loads(options["startingPosition"]) == {
        "shardId-000000000000": "latest",
        "shardId-000000000001": {"after_sequence_number": AFTER["after"], "sub_sequence_number": 3},
        "shardId-000000000002": "trim_horizon",
        "shardId-000000000003": "trim_horizon",
        "default": "trim_horizon",
    }
    assert stream.calls.by_operation().keys() == {"DescribeStreamSummary", "ListShards"}


@pytest.mark.parametrize("age_ms", [60_000, 2 * 24 * 3_600_000])
def test_a_shard_whose_last_record_has_expired_starts_at_a_time(
    stream: EmbeddedKinesis, tmp_path: Path, age_ms: int
) -> None:
    """If it was read to its latest record within the retention. The number of its start stands for
    the expired record."""
    client = boto3.client("kinesis", **stream.client_settings())
    (shard,) = client.list_shards(
        StreamName="orders", ExclusiveStartShardId="shardId-000000000000", MaxResults=1
    )["Shards"]
    client.close()
    after = shard["SequenceNumberRange"]["StartingSequenceNumber"]
    seen_ms = stream.state.clock.now_ms() - age_ms
    entry = {"after": after, "sub": 0, "seen": seen_ms}
    path = _checkpoint(tmp_path / "c", _offset(stream, {"shardId-000000000001": entry}))
    found = run(
        "checkpoint", str(path), "--as-starting-position", *_connected(stream), environment=KEYS
    )
    point = json.loads(found.document()["startingPosition"])["shardId-000000000001"]
    if age_ms == 60_000:
        assert point == {"at_timestamp": seen_ms - CLOCK_UNCERTAINTY_MS}
        assert "orders/shardId-000000000001" in found.err
    else:
        assert point == {"after_sequence_number": after, "sub_sequence_number": 0}


def test_an_ancestor_is_skipped(stream: EmbeddedKinesis, tmp_path: Path) -> None:
    shards = {f"shardId-00000000000{n}": {"at": "TRIM_HORIZON"} for n in (1, 2, 3)}
    path = _checkpoint(tmp_path / "c", _offset(stream, shards))
    found = run(
        "checkpoint", str(path), "--as-starting-position", *_connected(stream), environment=KEYS
    )
    start = json.loads(found.document()["startingPosition"])
    assert start["shardId-000000000000"] == "latest"


@pytest.mark.parametrize(
    ("changed", "part"),
    [({"leases": "etl"}, "lease table etl"), ({"created": 5}, "deleted and created again")],
)
def test_what_would_start_elsewhere_is_refused(
    stream: EmbeddedKinesis, tmp_path: Path, changed: dict[str, Any], part: str
) -> None:
    offset = _offset(stream, {"shardId-000000000001": AFTER}, **changed)
    path = _checkpoint(tmp_path / "c", offset)
    found = run(
        "checkpoint", str(path), "--as-starting-position", *_connected(stream), environment=KEYS
    )
    assert (found.code, found.out) == (2, "")
    assert part in found.err


@pytest.mark.parametrize("recreated", [False, True])
def test_a_stream_that_is_gone_can_be_dropped(
    stream: EmbeddedKinesis, tmp_path: Path, recreated: bool
) -> None:
    stream.state.create_stream("clicks", shards=1)
    offset = _offset(stream, {"shardId-000000000001": AFTER})
    offset["streams"] = {"clicks": {"created": 5}, **offset["streams"]}
    offset["ssp"]["0"] = {
        "clicks": {"shardId-000000000000": {"at": "TRIM_HORIZON"}},
        **offset["ssp"]["0"],
    }
    path = _checkpoint(tmp_path / "c", offset)
    if not recreated:
        stream.state.delete_stream("clicks")
    arguments = ("checkpoint", str(path), "--as-starting-position", *_connected(stream))
    refused = run(*arguments, environment=KEYS)
    assert (refused.code, refused.out) == (2, "")
    assert "--drop clicks" in refused.err
    found = run(*arguments, "--drop", "clicks", environment=KEYS)
    assert found.document()["streamName"] == "orders"


def test_a_stream_that_only_the_planned_batch_has_is_named(cloud: Cloud, tmp_path: Path) -> None:
    for name in ("orders", "clicks"):
        cloud.kinesis.state.create_stream(name, shards=1)
    created = {name: cloud.created_ms(name) for name in ("orders", "clicks")}
    checkpoint = WrittenCheckpoint(path=tmp_path / "c")
    ends = [
        kinesis_end({0: TrimHorizon()}, created["orders"], others=others)
        for others in ({}, {"clicks": created["clicks"]})
    ]
    checkpoint.plan(0, ends[0], cloud.clock.now_ms())
    checkpoint.commit(0, cloud.clock.now_ms())
    arguments = ("checkpoint", str(checkpoint.path), "--as-starting-position")
    before = cloud.run(*arguments)
    assert (before.code, before.err) == (0, "")
    checkpoint.plan(1, ends[1], cloud.clock.now_ms())
    found = cloud.run(*arguments)
    assert (found.code, found.out) == (0, before.out)
    (note,) = found.err.splitlines()
    assert "clicks" in note
    (source,) = cloud.run("checkpoint", str(checkpoint.path), "--json").document()["sources"]
    assert source["onlyPlanned"] == ["clicks"]


def test_the_delay_of_the_committed_and_of_the_planned_batch(cloud: Cloud, tmp_path: Path) -> None:
    """Of a deleted stream it is unknown, and never 0."""
    cloud.kinesis.state.create_stream("orders", shards=2)
    numbers = []
    for _ in range(3):
        numbers.append(SequenceNumber(cloud.put("orders", "key", 0)))
        cloud.clock.advance(60_000)
    checkpoint = WrittenCheckpoint(path=tmp_path / "c")
    for batch in (0, 1):
        after = AfterRecord(sequence_number=numbers[batch])
        end = kinesis_end({0: after, 1: TrimHorizon()}, cloud.created_ms("orders"))
        checkpoint.plan(batch, end, cloud.clock.now_ms())
    checkpoint.commit(0, cloud.clock.now_ms())
    arguments = ("checkpoint", str(checkpoint.path), "--delay")

    found = cloud.run(*arguments, "--json").document()
    assert found["committedDelay"]["ms"] == pytest.approx(120_000, abs=2_000)
    assert found["plannedDelay"]["ms"] == pytest.approx(60_000, abs=2_000)
    rows = found["sources"][0]["shards"]
    assert [row["committedDelay"]["ms"] == 0 for row in rows] == [False, True]
    text = cloud.run(*arguments).out
    assert "delay 2 min by the committed batch, 1 min by the planned one" in text
    assert "(created " in text

    cloud.client.delete_stream(StreamName="orders")
    cloud.clock.advance(60_000)
    gone = cloud.run(*arguments, "--json").document()
    assert gone["committedDelay"]["ms"] is None
    assert [finding["verdict"] for finding in gone["findings"]] == ["FAILED"]
    assert {row["committedDelay"] for row in gone["sources"][0]["shards"]} == {None}
    assert "delay unknown by the committed batch" in cloud.run(*arguments).out
    assert cloud.run(*arguments, "--as-starting-position").code == 2


@pytest.mark.parametrize("slow", [0, 1])
def test_each_source_that_reads_a_stream_has_its_own_delay(
    cloud: Cloud, tmp_path: Path, slow: int
) -> None:
    cloud.kinesis.state.create_stream("orders", shards=1)
    numbers = []
    for _ in range(2):
        numbers.append(SequenceNumber(cloud.put("orders", "key", 0)))
        cloud.clock.advance(60_000)
    ends = [
        kinesis_end({0: AfterRecord(sequence_number=number)}, cloud.created_ms("orders"))
        for number in (numbers if slow == 0 else reversed(numbers))
    ]
    checkpoint = WrittenCheckpoint(path=tmp_path / "c")
    checkpoint.plan(0, ends[0], cloud.clock.now_ms(), ends[1])
    checkpoint.commit(0, cloud.clock.now_ms())
    found = cloud.run("checkpoint", str(checkpoint.path), "--delay", "--json").document()
    delays = [source["shards"][0]["committedDelay"]["ms"] for source in found["sources"]]
    assert delays[1 - slow] == 0
    assert delays[slow] == pytest.approx(60_000, abs=2_000)


# --- awslabs --------------------------------------------------------------------------------------


def _awslabs(folder: Path, *, with_ends: bool = True) -> Path:
    """The checkpoint of a batch that read shard 0 to its end and an aggregate in shard 1."""

    def position(kind: str, text: str = "", sub: int = -1) -> dict[str, str]:
        found = {"iteratorType": kind, "iteratorPosition": text, "subSequenceNumber": str(sub)}
        return found | {"isLast": "true"}

    start = {f"shardId-00000000000{n}": position("TRIM_HORIZON") for n in (0, 1)}
    metadata = {"streamName": "orders", "batchId": "4"}
    _checkpoint(folder, {"metadata": metadata, **start})
    ends = folder / "sources" / "0" / "shard-source" / "4"
    if with_ends:
        ends.mkdir(parents=True)
        (ends / "shardId-000000000000").write_text(json.dumps(position("SHARD_END")))
        after = position("AFTER_SEQUENCE_NUMBER", str(AFTER["after"]), 2)
        (ends / "shardId-000000000001").write_text(json.dumps(after))
        (ends / ".shardId-000000000001.crc").write_bytes(b"\x00")
    return folder


def test_positions_of_awslabs_connector(stream: EmbeddedKinesis, tmp_path: Path) -> None:
    path = str(_awslabs(tmp_path / "c"))
    arguments = ("checkpoint", path, "--as-starting-position", "--from", "awslabs")
    found = run(*arguments, *_connected(stream), environment=KEYS)
    assert json.loads(found.document()["startingPosition"]) == {
        "shardId-000000000000": "latest",
        "shardId-000000000001": {"after_sequence_number": AFTER["after"], "sub_sequence_number": 2},
        "shardId-000000000002": "trim_horizon",
        "shardId-000000000003": "trim_horizon",
        "default": "trim_horizon",
    }
    assert "has no creation time of stream orders" in found.err
    log = tmp_path / "c" / "offsets" / "0"
    log.write_text(log.read_text().replace("{}", '{"batchTimestampMs": 5}'))
    younger = run(*arguments, *_connected(stream), environment=KEYS)
    assert (younger.code, younger.out) == (2, "")
    assert "created again since the checkpoint" in younger.err
    end = tmp_path / "c" / "sources" / "0" / "shard-source" / "4" / "shardId-000000000001"
    end.write_text('{"iteratorType": "LATEST", "iteratorPosition": ""}')
    planned_ms = _created(stream) + 1
    log.write_text(log.read_text().replace('": 5}', f'": {planned_ms}}}'))
    at_latest = run(*arguments, *_connected(stream), environment=KEYS)
    points = json.loads(at_latest.document()["startingPosition"])
    assert points["shardId-000000000001"] == {"at_timestamp": planned_ms}
    assert "LATEST in orders/shardId-000000000001" in at_latest.err
    log.write_text(log.read_text().replace(f'{{"batchTimestampMs": {planned_ms}}}', "{}"))
    unknown = run(*arguments, *_connected(stream), environment=KEYS)
    assert (unknown.code, unknown.out) == (2, "")
    elsewhere = str(_awslabs(tmp_path / "d", with_ends=False))
    refused = run("checkpoint", elsewhere, *arguments[2:], *_connected(stream), environment=KEYS)
    assert refused.code == 2
    assert "DYNAMODB" in refused.err


@pytest.mark.parametrize("is_of_record", [True, False])
def test_a_position_of_awslabs_connector_between_records_is_noted(
    stream: EmbeddedKinesis, tmp_path: Path, is_of_record: bool
) -> None:
    """With enhanced fan-out the connector stores the number that an event without records has."""
    state, name = stream.state, "shardId-000000000001"
    now = state.clock.now_ms()
    state.put("orders", "k", b"x", shard_id=name, arrival_ms=now - 10_000)
    shard = state.shard("orders", name)
    number = state.records("orders", name)[0].sequence_number
    if not is_of_record:
        number = str(shard.position_number(shard.log.end, now))
    path = _awslabs(tmp_path / "c")
    end = path / "sources" / "0" / "shard-source" / "4" / name
    end.write_text(
        json.dumps(
            {
                "iteratorType": "AFTER_SEQUENCE_NUMBER",
                "iteratorPosition": number,
                "subSequenceNumber": "-1",
            }
        )
    )
    log = path / "offsets" / "0"
    planned_ms = _created(stream) + 1
    log.write_text(log.read_text().replace("{}", f'{{"batchTimestampMs": {planned_ms}}}'))
    arguments = ("checkpoint", str(path), "--as-starting-position", "--from", "awslabs")
    found = run(*arguments, *_connected(stream), environment=KEYS)
    assert found.code == 0
    assert (f'{{"at_timestamp": {planned_ms}}}' in found.err) is not is_of_record


# --- S3 and Kafka ---------------------------------------------------------------------------------


def test_a_checkpoint_in_s3(moto: str) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=moto,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    client.create_bucket(Bucket="team-lake")
    source = CHECKPOINTS / "kinesis"
    for file in source.rglob("*"):
        if file.is_file():
            key = f"checkpoints/orders/{file.relative_to(source)}"
            client.put_object(Bucket="team-lake", Key=key, Body=file.read_bytes())
    key = "checkpoints/orders/commits/1"
    written = client.head_object(Bucket="team-lake", Key=key)["LastModified"]
    client.close()
    environment = KEYS | {"AWS_ENDPOINT_URL_S3": moto}
    local = run("checkpoint", str(source), columns=100)
    found = run(
        "checkpoint",
        "s3a://team-lake/checkpoints/orders/",
        columns=100,
        environment=environment,
    )
    assert found.out.splitlines()[1:] == local.out.splitlines()[1:]
    status = run("status", "s3://team-lake/checkpoints", "--json", environment=environment)
    (query,) = status.document()["queries"]
    assert query["location"] == "s3://team-lake/checkpoints/orders"
    assert query["committedAtMs"] // 1_000 == written.timestamp()
    empty = run("checkpoint", "s3://team-lake/checkpoints", environment=environment)
    assert (empty.code, "a folder without offsets" in empty.err) == (2, True)
    missing = run("checkpoint", "s3://nowhere-bucket/x", environment=environment)
    assert (missing.code, missing.err.count("\n")) == (2, 1)
    assert "NoSuchBucket" in missing.err


def test_partitions_added_since_then_start_at_their_oldest_record(
    kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    topic = topics.create(3)
    topics.put(topic, [Record(value=b"", partition=number) for number in (0, 1)] * 9)
    path = _checkpoint(tmp_path / "c", {topic: {"0": 7, "1": 8}})
    servers = ["--bootstrap-servers", kafka_broker.bootstrap_servers]
    found = run("checkpoint", str(path), "--as-starting-position", *servers)
    assert found.code == 0, found.err
    assert json.loads(found.document()["startingOffsets"]) == {topic: {"0": 7, "1": 8, "2": -2}}
    assert "the ids of these topics are unknown" in found.err  # Spark's checkpoints have none.


def _kafka_offset(kafka_broker: KafkaBroker, positions: dict[str, list[int]]) -> dict[str, Any]:
    """The offset of a query that has read so far."""
    found = describe_topics(map(StreamName, positions), kafka_broker.options)
    ssps = [partition_of(StreamName(name), n) for name in positions for n in range(2)]
    return encode(
        Offset(
            topics={name: topic.topic_id for name, topic in found.items()},
            positions={ssp: positions[ssp.stream][ssp.partition] for ssp in ssps},
            assignment=FixedTasks(grouper=GroupByPartition()).group(NO_ASSIGNMENT, ssps),
        )
    )


def test_topics_that_are_not_those_of_the_checkpoint_are_refused_until_they_are_dropped(
    kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    """A position in a topic that was created again would skip its records."""
    kept, again, deleted, cut = (topics.create(2) for _ in range(4))
    ten = [Record(value=b"", partition=number) for number in (0, 1)] * 10
    for topic in (kept, again, deleted, cut):
        topics.put(topic, ten)
    offset = _kafka_offset(
        kafka_broker, {kept: [4, 5], again: [4, 5], deleted: [4, 5], cut: [4, 11]}
    )
    path = _checkpoint(tmp_path / "c", offset)
    topics.delete(again)
    topics.create(2, name=again)
    topics.put(again, ten)
    topics.delete(deleted)
    arguments = ["checkpoint", str(path), "--as-starting-position"]
    unchecked = run(*arguments)
    assert unchecked.code == 0
    assert "no broker was asked" in unchecked.err
    arguments += ["--bootstrap-servers", kafka_broker.bootstrap_servers]
    refused = run(*arguments)
    assert (refused.code, refused.out) == (2, "")
    for part in (
        f"topic {again} was deleted and created again",
        f"topic {deleted} does not exist",
        f"{cut}-1 ends at 10, before the position 11",
    ):
        assert part in refused.err
    drop = [word for name in sorted((again, deleted, cut)) for word in ("--drop", name)]
    assert " ".join(drop) in refused.err
    found = run(*arguments, *drop)
    assert found.document()["subscribe"] == kept
    assert json.loads(found.document()["startingOffsets"]) == {kept: {"0": 4, "1": 5}}
    assert found.err == ""
    assert run(*arguments, "--drop", "another").code == 2
    assert run(*arguments, *drop, "--drop", kept).code == 2
