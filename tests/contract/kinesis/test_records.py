"""The Kinesis API reference, asserted over boto3: putting and reading. `test_shards.py` tests
shards and streams."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.contract.services import FIRST, MIDDLE, SECOND, Quirk, Service, refusal, texts

if TYPE_CHECKING:
    from types_boto3_kinesis.type_defs import PutRecordsRequestEntryTypeDef

HOUR_MS = 3_600_000
ENDS: Final = ("StartingHashKey", "EndingHashKey")


# --- Putting --------------------------------------------------------------------------------------


def test_a_record_comes_back_as_it_was_put(service: Service) -> None:
    stream = service.stream()
    data = bytes(range(256))
    before = service.now_ms()
    put = service.client.put_record(StreamName=stream, PartitionKey='k"\\€', Data=data)
    (record,) = service.page(service.iterator(stream))["Records"]
    assert (record["Data"], record["PartitionKey"]) == (data, 'k"\\€')
    assert (put["ShardId"], record["SequenceNumber"]) == (FIRST, put["SequenceNumber"])
    arrival = round(record["ApproximateArrivalTimestamp"].timestamp() * 1000)
    assert before <= arrival <= service.now_ms()


def test_puts_keep_their_order_and_their_numbers_grow(service: Service) -> None:
    stream = service.stream()
    numbers = service.put(stream, *"abcdefghij")
    assert [int(n) for n in numbers] == sorted({int(n) for n in numbers})
    assert service.read(stream) == "abcdefghij"


def test_a_batch_is_answered_record_by_record(service: Service) -> None:
    stream = service.stream(2)
    keys = [f"key-{n}" for n in range(20)]
    answer = service.client.put_records(
        StreamName=stream, Records=[{"PartitionKey": k, "Data": k.encode()} for k in keys]
    )
    assert answer["FailedRecordCount"] == 0
    expected = [
        FIRST if int(hashlib.md5(k.encode()).hexdigest(), 16) < MIDDLE else SECOND for k in keys
    ]
    assert [record["ShardId"] for record in answer["Records"]] == expected
    for shard in (FIRST, SECOND):
        wanted = [k for k, s in zip(keys, expected, strict=True) if s == shard]
        assert service.read(stream, shard) == "".join(wanted)


def test_an_explicit_hash_key_decides(service: Service) -> None:
    stream = service.stream(2)
    for shard, description in service.shards(stream).items():
        for end in ENDS:
            answer = service.client.put_record(
                StreamName=stream,
                PartitionKey="same",
                Data=b"x",
                ExplicitHashKey=description["HashKeyRange"][end],
            )
            assert answer["ShardId"] == shard


def test_puts_that_cannot_be_are_refused(service: Service) -> None:
    stream = service.stream()
    put = service.client.put_record
    good: dict[str, Any] = {"PartitionKey": "k", "Data": b"x"}
    beyond = good | {"ExplicitHashKey": str(2**128)}
    large = good | {"Data": b"x" * (1024 * 1024 + 1)}
    assert refusal(put, StreamName="absent", **good) == "ResourceNotFoundException"
    assert refusal(put, StreamName=stream, **beyond) == "InvalidArgumentException"
    assert refusal(put, StreamName=stream, **large) in (
        "InvalidArgumentException",
        "ValidationException",
    )
    assert service.read(stream) == ""


def test_a_batch_holds_500_records(service: Service) -> None:
    stream = service.stream()
    record: PutRecordsRequestEntryTypeDef = {"PartitionKey": "k", "Data": b"x"}
    put = service.client.put_records
    if service.has(Quirk.ANY_BATCH_SIZE):
        put(StreamName=stream, Records=[record] * 501)
    else:
        found = refusal(put, StreamName=stream, Records=[record] * 501)
        assert found in ("InvalidArgumentException", "ValidationException")
        assert service.read(stream) == ""
    put(StreamName=stream, Records=[record] * 500)


# --- Iterators ------------------------------------------------------------------------------------


def test_pages_follow_each_other_without_gap_or_repetition(service: Service) -> None:
    stream = service.stream()
    service.put(stream, *"abcdefg")
    token, found = service.iterator(stream), []
    for _ in range(4):
        page = service.page(token, limit=2)
        found.append(texts(page))
        token = page["NextShardIterator"]
    assert found == ["ab", "cd", "ef", "g"]
    service.put(stream, "h")
    assert texts(service.page(token)) == "h"


def test_an_iterator_can_be_used_again(service: Service) -> None:
    stream = service.stream()
    service.put(stream, *"ab")
    token = service.iterator(stream)
    assert [texts(service.page(token)) for _ in range(2)] == ["ab", "ab"]


def test_iterators_by_sequence_number(service: Service) -> None:
    stream = service.stream()
    numbers = service.put(stream, *"abc")
    for kind, at, expected in (
        ("AT_SEQUENCE_NUMBER", 0, "abc"),
        ("AT_SEQUENCE_NUMBER", 1, "bc"),
        ("AFTER_SEQUENCE_NUMBER", 1, "c"),
        ("AFTER_SEQUENCE_NUMBER", 2, ""),
    ):
        found = service.read(stream, kind=kind, StartingSequenceNumber=numbers[at])
        assert (kind, at, found) == (kind, at, expected)


def test_the_starting_number_of_a_shard_is_its_beginning(service: Service) -> None:
    stream = service.stream()
    service.put(stream, *"ab")
    start = service.shards(stream)[FIRST]["SequenceNumberRange"]["StartingSequenceNumber"]
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        assert service.read(stream, kind=kind, StartingSequenceNumber=start) == "ab"


def test_latest_sees_only_what_comes(service: Service) -> None:
    stream = service.stream()
    service.put(stream, "a")
    token = service.iterator(stream, kind="LATEST")
    service.put(stream, *"bc")
    assert texts(service.page(token)) == "bc"


def test_at_timestamp(service: Service) -> None:
    stream = service.stream()
    service.put(stream, *"ab")
    service.advance(5000)
    service.put(stream, *"cd")
    page = service.page(service.iterator(stream))
    arrivals = [r["ApproximateArrivalTimestamp"].timestamp() for r in page["Records"]]

    def at(moment: float) -> str:
        return service.read(stream, kind="AT_TIMESTAMP", Timestamp=moment)

    assert at(arrivals[0] - 1000) == "abcd"
    assert at(arrivals[0]) == "abcd"
    assert at(arrivals[1] + 1) == "cd"
    assert at(arrivals[2]) == "cd"
    service.advance(2000)
    assert at(arrivals[3] + 1) == ""


def test_at_timestamp_is_refused_ahead_of_the_clock(service: Service) -> None:
    stream = service.stream()
    ahead: dict[str, Any] = {
        "StreamName": stream,
        "ShardId": FIRST,
        "ShardIteratorType": "AT_TIMESTAMP",
        "Timestamp": service.now_ms() / 1000 + 60,
    }
    get = service.client.get_shard_iterator
    if service.has(Quirk.FUTURE_OF_AN_EMPTY_SHARD):
        get(**ahead)
    else:
        assert refusal(get, **ahead) == "InvalidArgumentException"
    service.put(stream, "a")
    assert refusal(get, **ahead) == "InvalidArgumentException"


def test_an_iterator_lives_five_minutes(service: Service) -> None:
    stream = service.stream()
    service.put(stream, "a")
    token = service.iterator(stream)
    service.advance(290_000)
    following = service.page(token)["NextShardIterator"]
    service.advance(11_000)
    assert refusal(service.page, iterator=token) == "ExpiredIteratorException"
    assert texts(service.page(following)) == ""


@pytest.mark.parametrize("token", ["nonsense", "AAAAAAAAAAE=", "A" * 224])
def test_a_made_up_iterator_is_refused(service: Service, token: str) -> None:
    quirk = service.has(Quirk.MADE_UP_ITERATOR_IS_500)
    expected = "500" if quirk else "InvalidArgumentException"
    assert refusal(service.page, iterator=token) == expected


def test_iterators_that_cannot_be_are_refused(service: Service) -> None:
    stream = service.stream(2)
    (other,) = service.put(stream, "a", key=MIDDLE)
    get = service.client.get_shard_iterator
    here: dict[str, Any] = {"StreamName": stream, "ShardId": FIRST}
    absent = here | {"ShardId": "shardId-000000000009", "ShardIteratorType": "LATEST"}
    assert refusal(get, **absent) == "ResourceNotFoundException"
    gone = here | {"StreamName": "absent", "ShardIteratorType": "LATEST"}
    assert refusal(get, **gone) == "ResourceNotFoundException"
    by_number = here | {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER"}
    assert refusal(get, **by_number) == "InvalidArgumentException"
    foreign = by_number | {"StartingSequenceNumber": other}
    if service.has(Quirk.FOREIGN_NUMBERS_PASS):
        get(**foreign)
    else:
        assert refusal(get, **foreign) == "InvalidArgumentException"
    at_time = here | {"ShardIteratorType": "AT_TIMESTAMP"}
    assert refusal(get, **at_time) == "InvalidArgumentException"


# --- Lag, limits, retention -----------------------------------------------------------------------


def test_lag_is_zero_only_at_the_latest_record(service: Service) -> None:
    stream = service.stream()
    service.put(stream, *"a")
    service.advance(4000)
    service.put(stream, *"b")
    token = service.iterator(stream)
    assert service.page(token)["MillisBehindLatest"] == 0
    assert service.page(service.iterator(stream, kind="LATEST"))["MillisBehindLatest"] == 0
    service.advance(9000)
    assert service.page(token)["MillisBehindLatest"] == 0
    behind = service.page(token, limit=1)["MillisBehindLatest"]
    if service.has(Quirk.LAG_TO_THE_LAST_RECORD):
        assert 4000 <= behind < 9000
    else:
        assert 9000 <= behind < HOUR_MS


def test_a_page_has_limits(service: Service) -> None:
    stream = service.stream()
    service.put(stream, "a")
    token = service.iterator(stream)
    assert refusal(service.page, iterator=token, limit=10_001) == "InvalidArgumentException"
    for _ in range(11):
        service.client.put_record(StreamName=stream, PartitionKey="k", Data=b"x" * 1_000_000)
    first = service.page(token)
    size = sum(len(record["Data"]) for record in first["Records"])
    assert 1 < size <= 10 * 1024 * 1024
    rest = service.page(first["NextShardIterator"])
    assert len(first["Records"]) + len(rest["Records"]) == 12


def test_records_vanish_after_the_retention_period(service: Service) -> None:
    stream = service.stream()
    (old,) = service.put(stream, "a")
    service.advance(23 * HOUR_MS)
    service.put(stream, "b")
    service.advance(HOUR_MS + 60_000)
    found = service.read(stream)
    after = service.read(stream, kind="AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=old)
    at = service.read(stream, kind="AT_SEQUENCE_NUMBER", StartingSequenceNumber=old)
    if service.has(Quirk.NOTHING_EXPIRES):
        assert (found, after, at) == ("ab", "b", "ab")
    else:
        assert (found, after, at) == ("b", "b", "b")
