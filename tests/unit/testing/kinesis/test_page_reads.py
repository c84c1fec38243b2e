"""Reading the embedded service: pages, positions, lag, the ends of shards, trimming."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from spark_ssp.testing.kinesis import Delays, KinesisState, ManualClock, UnusualAnswers
from spark_ssp.testing.kinesis.state.page_reads import RecordsPage
from spark_ssp.testing.kinesis.state.stream import decode_number
from tests.support.kinesis.embedded_calls import FIRST, iterator, outcome, read, texts

START = 1_700_000_000_000
HOUR = 3_600_000


def put(state: KinesisState, *data: str, **options: Any) -> list[str]:
    return [state.put("orders", "key", d.encode(), **options).sequence_number for d in data]


def test_sequence_numbers_look_real_and_grow(state: KinesisState) -> None:
    numbers = put(state, *"abc")
    assert [len(number) for number in numbers] == [56, 56, 56]
    assert sorted(numbers, key=int) == numbers
    decoded = decode_number(int(numbers[1]))
    assert decoded is not None
    assert (decoded.shard_index, decoded.index) == (0, 2)


def test_at_timestamp_is_the_first_in_order_that_arrived_then_or_later(
    state: KinesisState, clock: ManualClock
) -> None:
    clock.advance(1000)
    for letter, arrival in (("a", 100), ("b", 500), ("c", 300), ("d", 600)):
        put(state, letter, arrival_ms=START + arrival)

    def at(ms: int) -> str:
        token = iterator(state, "AT_TIMESTAMP", Timestamp=(START + ms) / 1000)
        return texts(read(state, token))

    assert [at(ms) for ms in (0, 100, 101, 301, 501, 601)] == [
        "abcd",
        "abcd",
        "bcd",
        "bcd",
        "d",
        "",
    ]


def test_a_timestamp_ahead_of_the_clock_is_refused(state: KinesisState) -> None:
    body = {"StreamName": "orders", "ShardId": FIRST, "ShardIteratorType": "AT_TIMESTAMP"}
    ahead = body | {"Timestamp": (START + 1) / 1000}
    assert outcome(state, "GetShardIterator", ahead) == "InvalidArgumentException"
    iterator(state, "AT_TIMESTAMP", Timestamp=START / 1000)


def test_at_timestamp_beyond_the_latest_record_waits_for_what_comes(
    state: KinesisState, clock: ManualClock
) -> None:
    put(state, "a")
    clock.advance(10)
    token = iterator(state, "AT_TIMESTAMP", Timestamp=(START + 5) / 1000)
    empty = read(state, token)
    assert (empty.records, empty.millis_behind_latest) == ([], 0)
    put(state, "b")
    assert empty.next_iterator is not None
    assert texts(read(state, empty.next_iterator)) == "b"


def test_lag_is_the_age_of_the_next_record(state: KinesisState, clock: ManualClock) -> None:
    put(state, "a")
    clock.advance(700)
    put(state, "b")
    clock.advance(300)
    token = iterator(state)
    assert read(state, token, limit=1).millis_behind_latest == 300
    assert read(state, token, limit=2).millis_behind_latest == 0


def test_lag_is_never_zero_while_a_record_is_left(state: KinesisState) -> None:
    put(state, "a", "b")
    assert read(state, iterator(state), limit=1).millis_behind_latest == 1


def test_iterators_expire_after_five_minutes(state: KinesisState, clock: ManualClock) -> None:
    token = iterator(state)
    clock.advance(300_000)
    read(state, token)
    clock.advance(1)
    assert outcome(state, "GetRecords", {"ShardIterator": token}) == "ExpiredIteratorException"


def test_a_damaged_iterator_is_refused(state: KinesisState) -> None:
    token = iterator(state)
    damaged = token[:-8] + ("A" if token[-8] != "A" else "B") + token[-7:]
    for bad in ("", "nonsense", damaged, "é"):
        found = outcome(state, "GetRecords", {"ShardIterator": bad})
        assert found == "InvalidArgumentException"


def test_a_merged_child_names_both_parents(state: KinesisState) -> None:
    lower, upper = state.split("orders", FIRST)
    child = state.merge("orders", upper, lower)
    answer = state.call("ListShards", {"StreamName": "orders"})
    assert isinstance(answer, dict)
    listed = {shard["ShardId"]: shard for shard in answer["Shards"]}
    assert list(listed) == [FIRST, lower, upper, child]
    assert (listed[child]["ParentShardId"], listed[child]["AdjacentParentShardId"]) == (
        upper,
        lower,
    )
    assert "EndingSequenceNumber" not in listed[child]["SequenceNumberRange"]
    assert all(
        "EndingSequenceNumber" in listed[s]["SequenceNumberRange"] for s in (FIRST, lower, upper)
    )


def test_numbers_of_children_are_larger_than_their_parents(state: KinesisState) -> None:
    before = put(state, "a")
    lower, upper = state.split("orders", FIRST)
    child = state.merge("orders", lower, upper)
    ending = state.shard("orders", FIRST).ending_number
    assert ending is not None
    assert int(before[0]) < ending < state.shard("orders", lower).starting_number
    assert state.shard("orders", upper).last_possible_number() < int(put(state, "b")[0])
    assert [r.data for r in state.records("orders", child)] == [b"b"]


def test_scaling_leaves_equal_shards(state: KinesisState) -> None:
    for target in (3, 7, 2, 1, 64):
        state.scale("orders", target)
        ranges = [s.hash_range for s in state.stream("orders").open_shards()]
        assert len(ranges) == target
        assert (ranges[0].first, ranges[-1].last) == (0, (1 << 128) - 1)
        assert all(a.last + 1 == b.first for a, b in pairwise(ranges))
        sizes = {r.last - r.first for r in ranges[:-1]}
        assert len(sizes) <= 1


def test_longer_retention_does_not_bring_back_what_is_gone(
    state: KinesisState, clock: ManualClock
) -> None:
    put(state, "a")
    clock.advance(25 * HOUR)
    state.call(
        "IncreaseStreamRetentionPeriod", {"StreamName": "orders", "RetentionPeriodHours": 48}
    )
    put(state, "b")
    clock.advance(47 * HOUR)
    assert texts(read(state, iterator(state))) == "b"


def test_a_closed_shard_expires_after_retention(state: KinesisState, clock: ManualClock) -> None:
    put(state, "a")
    clock.advance(HOUR)
    lower, upper = state.split("orders", FIRST)
    clock.advance(24 * HOUR)
    assert [s.shard_id for s in state.stream("orders").shards(clock.now_ms())] == [
        FIRST,
        lower,
        upper,
    ]
    assert read(state, iterator(state)).next_iterator is None
    clock.advance(1)
    answer = state.call("ListShards", {"StreamName": "orders"})
    assert isinstance(answer, dict)
    assert [s["ShardId"] for s in answer["Shards"]] == [lower, upper]
    body = {"StreamName": "orders", "ShardId": FIRST, "ShardIteratorType": "LATEST"}
    assert outcome(state, "GetShardIterator", body) == "ResourceNotFoundException"


def test_a_number_that_cannot_be_of_the_shard_is_refused(state: KinesisState) -> None:
    (number,) = put(state, "a")
    lower, _ = state.split("orders", FIRST)
    body = {"StreamName": "orders", "ShardIteratorType": "AFTER_SEQUENCE_NUMBER"}
    beyond = state.shard("orders", FIRST).last_possible_number() + (1 << 80)
    for shard, wrong in ((lower, number), (FIRST, str(beyond)), (FIRST, "42")):
        request = body | {"ShardId": shard, "StartingSequenceNumber": wrong}
        assert outcome(state, "GetShardIterator", request) == "InvalidArgumentException"
    for right in ("starting_number", "ending_number"):
        own = getattr(state.shard("orders", FIRST), right)
        iterator(state, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=str(own))


def test_a_recreated_stream_is_another_stream(state: KinesisState) -> None:
    (number,) = put(state, "a")
    token, created = iterator(state), state.stream("orders").created_ms
    state.delete_stream("orders")
    assert outcome(state, "GetRecords", {"ShardIterator": token}) == "ResourceNotFoundException"
    state.create_stream("orders")
    assert state.stream("orders").created_ms != created
    assert outcome(state, "GetRecords", {"ShardIterator": token}) == "ResourceNotFoundException"
    body = {
        "StreamName": "orders",
        "ShardId": FIRST,
        "ShardIteratorType": "AFTER_SEQUENCE_NUMBER",
        "StartingSequenceNumber": number,
    }
    assert outcome(state, "GetShardIterator", body) == "InvalidArgumentException"


def test_a_page_holds_ten_mebibytes_at_most_but_at_least_one_record(clock: ManualClock) -> None:
    state = KinesisState(clock=clock)
    state.create_stream("orders", max_record_bytes=10 * 1024 * 1024)
    mebibyte = b"x" * (1024 * 1024 - 3)
    for _ in range(12):
        state.put("orders", "key", mebibyte)
    assert len(read(state, iterator(state)).records) == 10
    state.create_stream("large", max_record_bytes=10 * 1024 * 1024)
    state.put("large", "key", b"x" * (10 * 1024 * 1024))
    answer = state.call(
        "GetShardIterator",
        {"StreamName": "large", "ShardId": FIRST, "ShardIteratorType": "TRIM_HORIZON"},
    )
    assert isinstance(answer, dict)
    assert len(read(state, answer["ShardIterator"]).records) == 1


def test_trimming_keeps_positions_when_the_log_is_compacted(state: KinesisState) -> None:
    numbers = put(state, *map(str, range(20_000)))
    token = iterator(state, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[15_000])
    assert state.trim("orders", FIRST, before_sequence_number=numbers[12_000]) == 12_000
    assert texts(read(state, token, limit=2)) == "1500015001"
    assert texts(read(state, iterator(state), limit=1)) == "12000"
    again = iterator(state, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[16_000])
    assert texts(read(state, again, limit=1)) == "16001"
    assert state.trim("orders", FIRST) == 8_000
    assert read(state, iterator(state)).records == []
    put(state, "new")
    assert texts(read(state, token)) == "new"


def test_changes_take_as_long_as_configured(clock: ManualClock) -> None:
    state = KinesisState(clock=clock, delays=Delays(create_ms=10, delete_ms=20, reshard_ms=30))
    name = {"StreamName": "orders"}
    put_body = name | {"PartitionKey": "key", "Data": b"x"}

    def status() -> str:
        answer = state.call("DescribeStreamSummary", name)
        assert isinstance(answer, dict)
        found = answer["StreamDescriptionSummary"]["StreamStatus"]
        assert isinstance(found, str)
        return found

    state.call("CreateStream", name | {"ShardCount": 1})
    assert status() == "CREATING"
    assert outcome(state, "PutRecord", put_body) == "ResourceInUseException"
    clock.advance(10)
    assert status() == "ACTIVE"
    state.call("SplitShard", name | {"ShardToSplit": FIRST, "NewStartingHashKey": "99"})
    assert status() == "UPDATING"
    state.call("PutRecord", put_body)
    assert len(state.records("orders", FIRST)) == 1
    clock.advance(30)
    assert status() == "ACTIVE"
    assert len(state.open_shard_ids("orders")) == 2
    state.call("DeleteStream", name)
    assert status() == "DELETING"
    clock.advance(20)
    assert outcome(state, "DescribeStreamSummary", name) == "ResourceNotFoundException"


# --- Unusual answers ------------------------------------------------------------------------------


@pytest.fixture
def abc(state: KinesisState) -> KinesisState:
    put(state, *"abc")
    return state


def pages(state: KinesisState, limit: int, *, count: int) -> list[RecordsPage]:
    """The first `count` pages from the beginning, or those up to the end of the shard."""
    token: str | None = iterator(state)
    found: list[RecordsPage] = []
    while token is not None and len(found) < count:
        found.append(read(state, token, limit))
        token = found[-1].next_iterator
    return found


def outline(page: RecordsPage) -> tuple[str, bool]:
    """The data of a page, and whether its lag is 0."""
    return texts(page), page.millis_behind_latest == 0


def test_a_page_that_its_limit_cut_has_no_lag(abc: KinesisState) -> None:
    abc.answers = UnusualAnswers(zero_lag=True)
    found = [outline(page) for page in pages(abc, 2, count=3)]
    assert found == [("ab", True), ("c", True), ("", True)]


def test_empty_pages_come_before_the_latest_record(abc: KinesisState) -> None:
    abc.answers = UnusualAnswers(empty_pages=2)
    empty = ("", False)
    found = [outline(page) for page in pages(abc, 2, count=10)]
    tip = ("", True)
    assert found == [
        *(empty, empty, ("ab", False)),
        *(empty, empty, ("c", True)),
        *(empty, empty, tip, tip),
    ]


def test_a_closed_shard_ends_with_an_empty_page(abc: KinesisState) -> None:
    abc.split("orders", FIRST)
    assert [outline(page)[0] for page in pages(abc, 9, count=9)] == ["abc"]
    abc.answers = UnusualAnswers(late_shard_end=True)
    last = pages(abc, 9, count=9)
    assert [outline(page)[0] for page in last] == ["abc", ""]
    assert [page.child_shards is None for page in last] == [True, False]
