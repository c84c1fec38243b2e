"""Where an assignment can be kept, and the text in which it is."""

from __future__ import annotations

import pytest

from spark_ssp.checkpoint.assignments.store import (
    StoreKind,
    decode_text,
    encode_text,
    parse_store_uri,
)
from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.common.options.spec import BadValueError
from spark_ssp.grouping.assignment import NO_ASSIGNMENT, GroupByPartition
from spark_ssp.grouping.fixed_tasks import FixedTasks
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.options.values import QueryKind
from tests.support.kafka.partitions import ssps

LEAST = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}


@pytest.mark.parametrize(
    ("text", "kind", "place", "path"),
    [
        ("s3://bucket/assignments/orders", StoreKind.S3, "bucket", "assignments/orders"),
        ("s3a://bucket/orders/", StoreKind.S3, "bucket", "orders"),
        ("dynamodb://table/team/orders", StoreKind.DYNAMODB, "table", "team/orders"),
        ("gs://bucket/orders", StoreKind.FSSPEC, "bucket", "orders"),
        ("abfss://container/orders", StoreKind.FSSPEC, "container", "orders"),
        ("file:///mnt/shared/orders/", StoreKind.LOCAL, "", "/mnt/shared/orders"),
        ("memory://tests/orders", StoreKind.FSSPEC, "tests", "orders"),
    ],
)
def test_a_uri_says_what_is_kept_where(text: str, kind: StoreKind, place: str, path: str) -> None:
    parsed = parse_store_uri(text)
    assert (parsed.text, parsed.kind, parsed.container, parsed.path) == (text, kind, place, path)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("orders.json", "scheme and path"),
        ("file:/mnt/orders", "scheme and path"),
        ("s3://key:s3cr3t@bucket/orders", "without a user, a password"),
        ("s3://bucket/orders?versionId=s3cr3t", "or a query"),
        ("hdfs://namenode/orders", "'hdfs' cannot create a file only if it does not exist"),
        ("dbfs://orders/x", "'dbfs' cannot create"),
        ("http://host/orders", "'http' cannot create"),
        ("file://mnt/orders", "file:///folder/name"),
        ("file:///", "file:///folder/name"),
        ("file:///mnt/../etc", "file:///folder/name"),
        ("s3://bucket", "s3://bucket/assignments/orders"),
        ("s3://bucket/", "s3://bucket/assignments/orders"),
        ("s3://Bucket/orders", "as in S3"),
        ("dynamodb://my table/orders", "scheme and path"),
        ("dynamodb://t/orders", "as in DynamoDB"),
        ("gs:///orders", "name the bucket or container"),
        ("s3://bucket/" + "x" * 901, "s3://bucket/assignments/orders"),
    ],
)
def test_a_uri_where_nothing_can_be_kept_is_refused_with_the_options(text: str, hint: str) -> None:
    with pytest.raises(BadValueError) as bad:
        parse_store_uri(text)
    [fault] = bad.value.faults
    assert hint in fault.next_step
    with pytest.raises(InvalidOptionsError) as caught:
        parse_options({**LEAST, "assignmentStore": text}, QueryKind.STREAM)
    assert caught.value.subject == "assignmentStore"
    assert hint in caught.value.next_step
    assert "s3cr3t" not in str(caught.value)


def test_the_text_is_one_line_of_canonical_json() -> None:
    fixed = FixedTasks(grouper=GroupByPartition())
    two = fixed.group(NO_ASSIGNMENT, ssps({"orders": 2}))
    four = fixed.group(two, ssps({"orders": 4}))
    text = encode_text(four)
    assert text == (
        '{"v":1,"grouper":"partition","counts":{"kafka":{"orders":[2,4]}},'
        '"tasks":{"Partition 0":{"kafka":{"orders":[0,2]}},'
        '"Partition 1":{"kafka":{"orders":[1,3]}}}}\n'
    )
    assert decode_text(text, "here") == decode_text(text.encode(), "here") == four


def test_an_item_of_dynamodb_has_room_for_7_000_tasks() -> None:
    fixed = FixedTasks(grouper=GroupByPartition())
    text = encode_text(fixed.group(NO_ASSIGNMENT, ssps({"a-topic-s-name": 7_000})))
    # 400 KB, of which the item's other attributes take little.
    assert len(text) <= 400 * 1024 - 2_000
