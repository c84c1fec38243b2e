"""The Kinesis API reference, asserted over boto3: putting and reading. `test_shards.py` tests
shards and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spark_ssp.operations.acceptance import rules
from spark_ssp.operations.acceptance.rules import Put
from tests.contract.services import FIRST, MIDDLE, SECOND, Quirk, Service, refusal, texts

if TYPE_CHECKING:
    from types_boto3_kinesis.type_defs import PutRecordsRequestEntryTypeDef

HOUR_MS = 3_600_000


# --- Putting --------------------------------------------------------------------------------------


def test_a_record_comes_back_as_it_was_put(service: Service) -> None:
    stream = service.stream()
    data = bytes(range(256))
    before = service.now_ms()
    put = service.client.put_record(StreamName=stream, PartitionKey='k"\\€', Data=data)
    records = service.page(service.iterator(stream))["Records"]
    expected = Put(shard=put["ShardId"], number=put["SequenceNumber"], key='k"\\€', data=data)
    assert expected.shard == FIRST
    assert list(rules.records_come_back([expected], records)) == []
    assert before <= rules.arrival_ms(records[0]) <= service.now_ms()


def test_puts_keep_their_order_and_their_numbers_grow(service: Service) -> None:
    stream = service.stream()
    numbers = service.put(stream, *"abcdefghij")
    assert list(rules.numbers_grow(numbers)) == []
    assert service.read(stream) == "abcdefghij"


def test_a_batch_is_answered_record_by_record(service: Service) -> None:
    stream = service.stream(2)
    keys = [f"key-{n}" for n in range(20)]
    answer = service.client.put_records(
        StreamName=stream, Records=[{"PartitionKey": k, "Data": k.encode()} for k in keys]
    )
    assert answer["FailedRecordCount"] == 0
    puts = [
        Put(shard=put["ShardId"], number=put["SequenceNumber"], key=key, data=key.encode())
        for put, key in zip(answer["Records"], keys, strict=True)
    ]
    assert list(rules.keys_place_records(puts, service.listing(stream))) == []
    for shard in (FIRST, SECOND):
        wanted = [put.key for put in puts if put.shard == shard]
        assert wanted
        assert service.read(stream, shard) == "".join(wanted)


def test_an_explicit_hash_key_decides(service: Service) -> None:
    stream = service.stream(2)
    shards = service.listing(stream)
    puts = []
    for hash_key in (key for shard in shards for key in rules.hash_range(shard)):
        answer = service.client.put_record(
            StreamName=stream, PartitionKey="same", Data=b"x", ExplicitHashKey=str(hash_key)
        )
        shard, number = answer["ShardId"], answer["SequenceNumber"]
        puts.append(Put(shard=shard, number=number, key="same", data=b"x", hash_key=hash_key))
    assert list(rules.keys_place_records(puts, shards)) == []


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
    numbers = service.put(stream, *"abcdefg")
    token, pages = service.iterator(stream), []
    for _ in range(4):
        pages.append(service.page(token, limit=2))
        token = pages[-1]["NextShardIterator"]
    assert list(rules.pages_follow_each_other(pages, 2, numbers)) == []
    assert list(rules.open_pages_go_on(pages)) == []
    assert [texts(page) for page in pages] == ["ab", "cd", "ef", "g"]
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
    records = service.page(service.iterator(stream))["Records"]
    arrivals = [rules.arrival_ms(record) for record in records]
    assert list(rules.arrivals_keep_order(records, arrivals[0], service.now_ms())) == []
    service.advance(2000)
    for at, expected in (
        (arrivals[0] - 1_000_000, "abcd"),
        (arrivals[0], "abcd"),
        (arrivals[1] + 1000, "cd"),
        (arrivals[2], "cd"),
        (arrivals[3] + 1000, ""),
    ):
        numbers = rules.numbers_from(records, at)
        assert "abcd"[len("abcd") - len(numbers) :] == expected
        page = service.page(service.iterator(stream, kind="AT_TIMESTAMP", Timestamp=at / 1000))
        found = rules.numbers_of([page])
        assert list(rules.a_position_begins_at("AT_TIMESTAMP", found, numbers)) == []


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
        assert refusal(get, **ahead) in rules.REFUSED_REQUEST
    service.put(stream, "a")
    assert refusal(get, **ahead) == "InvalidArgumentException"


def test_an_iterator_lives_five_minutes(service: Service) -> None:
    stream = service.stream()
    service.put(stream, "a")
    token = service.iterator(stream)
    service.advance(290_000)
    following = service.page(token)["NextShardIterator"]
    service.advance(11_000)
    assert refusal(service.page, iterator=token) in rules.EXPIRED
    assert texts(service.page(following)) == ""


@pytest.mark.parametrize("token", ["nonsense", "AAAAAAAAAAE=", "A" * 224])
def test_a_made_up_iterator_is_refused(service: Service, token: str) -> None:
    quirk = service.has(Quirk.MADE_UP_ITERATOR_IS_500)
    expected = {"500"} if quirk else rules.REFUSED_REQUEST
    assert refusal(service.page, iterator=token) in expected


def test_iterators_that_cannot_be_are_refused(service: Service) -> None:
    stream = service.stream(2)
    (other,) = service.put(stream, "a", key=MIDDLE)
    get = service.client.get_shard_iterator
    here: dict[str, Any] = {"StreamName": stream, "ShardId": FIRST}
    absent = here | {"ShardId": "shardId-000000000009", "ShardIteratorType": "LATEST"}
    assert refusal(get, **absent) in rules.NOT_FOUND
    gone = here | {"StreamName": "absent", "ShardIteratorType": "LATEST"}
    assert refusal(get, **gone) in rules.NOT_FOUND
    by_number = here | {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER"}
    assert refusal(get, **by_number) == "InvalidArgumentException"
    foreign = by_number | {"StartingSequenceNumber": other}
    if service.has(Quirk.FOREIGN_NUMBERS_PASS):
        get(**foreign)
    else:
        assert refusal(get, **foreign) in rules.REFUSED_REQUEST
    at_time = here | {"ShardIteratorType": "AT_TIMESTAMP"}
    assert refusal(get, **at_time) == "InvalidArgumentException"


# --- Lag, limits, retention -----------------------------------------------------------------------


def test_lag_is_zero_only_at_the_latest_record(service: Service) -> None:
    stream = service.stream()
    service.put(stream, *"a")
    service.advance(4000)
    service.put(stream, *"b")
    token = service.iterator(stream)
    for at_latest in (token, service.iterator(stream, kind="LATEST")):
        assert list(rules.the_latest_page_has_no_lag(service.page(at_latest))) == []
    service.advance(9000)
    assert list(rules.the_latest_page_has_no_lag(service.page(token))) == []
    page = service.page(token, limit=1)
    if service.has(Quirk.LAG_TO_THE_LAST_RECORD):
        assert 4000 <= page["MillisBehindLatest"] < 9000
        assert list(rules.lag_counts_to_now(page, 12_000))
    else:
        assert list(rules.lag_counts_to_now(page, 9000)) == []


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
