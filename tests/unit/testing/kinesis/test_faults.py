"""Injected faults of the embedded service: when they are due, and their effects."""

from __future__ import annotations

import pickle

import pytest

from spark_ssp.testing.kinesis import KinesisError, KinesisState, ManualClock
from spark_ssp.testing.kinesis.dispatch import OPERATIONS
from spark_ssp.testing.kinesis.state.errors import NoAnswer
from spark_ssp.testing.kinesis.state.faults import (
    AccessDenied,
    Call,
    DelayVisibility,
    DropConnection,
    EmptyPage,
    ExpiredIterator,
    FailSubscription,
    Fault,
    Faults,
    InternalFailure,
    LateShardEnd,
    LostReply,
    Refusal,
    RejectRecords,
    ShiftArrival,
    Throttle,
    Timeout,
    TrimRecords,
)
from tests.support.kinesis.embedded_calls import (
    FIRST,
    ORDERS,
    SECOND,
    answered,
    iterator,
    outcome,
    read,
    texts,
)

START = 1_700_000_000_000


def call(operation: str, stream: str | None = "orders", shard: str | None = None) -> Call:
    return Call(operation=operation, stream=stream, shard=shard, at_ms=START)


def put(state: KinesisState, text: str) -> str:
    answer = answered(state, "PutRecord", **ORDERS, PartitionKey="k", Data=text.encode())
    return str(answer["SequenceNumber"])


# --- When a fault is due --------------------------------------------------------------------------


def due(faults: Faults, *calls: Call) -> str:
    """One letter for each call: x where a fault is due."""
    return "".join("x" if faults.take(c) else "." for c in calls)


def test_a_fault_is_due_once_by_default() -> None:
    faults = Faults(OPERATIONS)
    faults.add(Throttle())
    assert due(faults, *[call("ListShards")] * 3) == "x.."
    assert list(faults) == []


@pytest.mark.parametrize(
    ("nth", "count", "expected"),
    [(1, 2, "xx..."), (2, 1, ".x..."), (3, 2, "..xx."), (2, None, ".xxxx")],
)
def test_a_fault_is_due_from_the_nth_match_so_many_times(
    nth: int, count: int | None, expected: str
) -> None:
    faults = Faults(OPERATIONS)
    injection = faults.add(Throttle(), nth=nth, count=count)
    assert due(faults, *[call("ListShards")] * 5) == expected
    assert injection.hits == expected.count("x")


def test_a_fault_is_due_only_in_calls_that_match() -> None:
    calls = (
        call("GetRecords", "orders", FIRST),
        call("GetRecords", "orders", SECOND),
        call("GetRecords", "other", FIRST),
        call("ListShards", "orders"),
    )
    for operation, stream, shard, expected in (
        ("GetRecords", None, None, "xxx."),
        (None, "orders", None, "xx.x"),
        (None, None, FIRST, "x.x."),
        ("GetRecords", "orders", SECOND, ".x.."),
    ):
        faults = Faults(OPERATIONS)
        faults.add(Throttle(), count=None, operation=operation, stream=stream, shard=shard)
        assert due(faults, *calls) == expected
    faults = Faults(OPERATIONS)
    faults.add(Throttle(), count=None, when=lambda c: c.shard is None)
    assert due(faults, *calls) == "...x"


@pytest.mark.parametrize(
    ("fault", "affected"),
    [
        (EmptyPage(), ["GetRecords"]),
        (LateShardEnd(), ["GetRecords"]),
        (ExpiredIterator(), ["GetRecords"]),
        (RejectRecords(), ["PutRecords"]),
        (DelayVisibility(delay_ms=1), ["PutRecord", "PutRecords"]),
        (ShiftArrival(shift_ms=1), ["PutRecord", "PutRecords"]),
        (FailSubscription(), ["SubscribeToShard"]),
        (
            TrimRecords(),
            ["GetRecords", "GetShardIterator", "MergeShards", "SplitShard", "SubscribeToShard"],
        ),
        (Throttle(), sorted(OPERATIONS)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_call_that_a_fault_cannot_affect_does_not_use_it_up(
    fault: Fault, affected: list[str]
) -> None:
    faults = Faults(OPERATIONS)
    injection = faults.add(fault, count=len(affected))
    met = [name for name in sorted(OPERATIONS) if faults.take(call(name, shard=FIRST))]
    assert (met, injection.hits, injection.exhausted) == (affected, len(affected), True)
    for operation in [*OPERATIONS, "GetRecord", "ListQueues"]:
        if operation in affected:
            faults.add(fault, operation=operation)
            continue
        with pytest.raises(ValueError, match="expected one of") as caught:
            faults.add(fault, operation=operation)
        assert repr(operation) in str(caught.value)
        assert all(name in str(caught.value) for name in affected)


def test_records_of_no_shard_are_not_trimmed(state: KinesisState) -> None:
    put(state, "a")
    injection = state.faults.add(TrimRecords())
    made_up = {"ShardIterator": "made up"}
    assert outcome(state, "GetRecords", made_up) == "InvalidArgumentException"
    token = iterator(state)
    assert (injection.hits, texts(read(state, token))) == (1, "")


def test_faults_can_be_taken_back() -> None:
    faults = Faults(OPERATIONS)
    one, other = faults.add(Throttle(), count=None), faults.add(AccessDenied(), count=None)
    faults.remove(one)
    faults.remove(one)
    assert faults.take(call("ListShards")) == [AccessDenied()]
    assert other.hits == 1
    faults.clear()
    assert faults.take(call("ListShards")) == []


# --- Effects --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Throttle(), "ProvisionedThroughputExceededException"),
        (InternalFailure(), "InternalFailure"),
        (InternalFailure(status=503), "ServiceUnavailable"),
        (AccessDenied(), "AccessDeniedException"),
        (ExpiredIterator(), "ExpiredIteratorException"),
        (Refusal(code="KMSDisabledException"), "KMSDisabledException"),
        (Timeout(delay_ms=5), "dropped"),
        (DropConnection(), "dropped"),
    ],
)
def test_faults_that_prevent_an_answer(state: KinesisState, fault: Fault, expected: str) -> None:
    token = iterator(state)
    state.faults.add(fault, operation="GetRecords")
    assert outcome(state, "GetRecords", {"ShardIterator": token}) == expected
    assert outcome(state, "GetRecords", {"ShardIterator": token}) == "ok"
    assert state.calls.count("GetRecords", stream="orders", shard=FIRST) == 2


def test_a_throttle_speaks_as_the_operation_does(state: KinesisState) -> None:
    state.faults.add(Throttle())
    assert outcome(state, "ListShards", ORDERS) == "LimitExceededException"


def test_the_earliest_of_several_faults_decides(state: KinesisState) -> None:
    state.faults.add(AccessDenied())
    state.faults.add(Throttle(), count=2)
    assert outcome(state, "ListShards", ORDERS) == "AccessDeniedException"
    assert outcome(state, "ListShards", ORDERS) == "LimitExceededException"
    assert outcome(state, "ListShards", ORDERS) == "ok"


def test_a_lost_reply_is_applied(state: KinesisState) -> None:
    state.faults.add(LostReply(), operation="PutRecord")
    with pytest.raises(NoAnswer) as caught:
        put(state, "a")
    assert caught.value.applied
    assert [record.data for record in state.records("orders")] == [b"a"]


def test_a_lost_reply_of_a_refused_request_is_refused(state: KinesisState) -> None:
    state.faults.add(LostReply())
    assert outcome(state, "ListShards", {"StreamName": "absent"}) == "ResourceNotFoundException"


def test_records_trimmed_under_the_readers_feet(state: KinesisState) -> None:
    numbers = [put(state, text) for text in "abcd"]
    token = iterator(state)
    by_number = TrimRecords(before_sequence_number=numbers[2])
    state.faults.add(by_number, operation="GetRecords", nth=2)
    assert texts(read(state, token)) == "abcd"
    assert texts(read(state, token)) == "cd"
    state.faults.add(TrimRecords(before_ms=START))
    assert texts(read(state, token)) == "cd"
    state.faults.add(TrimRecords(before_ms=START + 1))
    assert texts(read(state, token)) == ""
    put(state, "e")
    state.faults.add(TrimRecords())
    page = read(state, token)
    assert (texts(page), page.millis_behind_latest) == ("", 0)


def test_an_empty_page_keeps_the_place(state: KinesisState, clock: ManualClock) -> None:
    put(state, "a")
    clock.advance(5000)
    token = iterator(state)
    state.faults.add(EmptyPage(millis_behind_latest=7), operation="GetRecords")
    page = read(state, token)
    assert (texts(page), page.millis_behind_latest) == ("", 5000)
    assert page.next_iterator is not None
    assert page.next_iterator != token
    assert texts(read(state, page.next_iterator)) == "a"


def test_hidden_records_are_as_if_not_put(state: KinesisState, clock: ManualClock) -> None:
    put(state, "a")
    state.faults.add(DelayVisibility(delay_ms=50), operation="PutRecord")
    late = put(state, "b")
    put(state, "c")
    latest = iterator(state, "LATEST")
    page = read(state, iterator(state))
    assert (texts(page), page.millis_behind_latest) == ("a", 0)
    state.split("orders", FIRST)
    assert page.next_iterator is not None
    still = read(state, page.next_iterator)
    assert (texts(still), still.next_iterator is None) == ("", False)
    clock.advance(50)
    last = read(state, page.next_iterator)
    assert (texts(last), last.next_iterator, last.records[0].sequence_number) == ("bc", None, late)
    assert texts(read(state, latest)) == "bc"


def test_the_end_of_a_shard_can_come_late(state: KinesisState) -> None:
    put(state, "a")
    state.split("orders", FIRST)
    state.faults.add(LateShardEnd(), operation="GetRecords", count=None)
    page = read(state, iterator(state))
    assert (texts(page), page.millis_behind_latest, page.child_shards) == ("a", 0, None)
    assert page.next_iterator is not None
    last = read(state, page.next_iterator)
    assert (texts(last), last.next_iterator) == ("", None)
    assert last.child_shards is not None


def test_arrival_times_can_go_backwards(state: KinesisState) -> None:
    state.faults.add(ShiftArrival(shift_ms=-300), operation="PutRecord", nth=2)
    for text in "abc":
        put(state, text)
    arrivals = [record.arrival_ms for record in read(state, iterator(state)).records]
    assert arrivals == [START, START - 300, START]


def test_some_records_of_a_batch_are_rejected(state: KinesisState) -> None:
    state.faults.add(RejectRecords(every=3))
    records = [{"PartitionKey": str(n), "Data": b"x"} for n in range(7)]
    answer = answered(state, "PutRecords", **ORDERS, Records=records)
    assert answer["FailedRecordCount"] == 2
    rejected = [n for n, record in enumerate(answer["Records"]) if "ErrorCode" in record]
    assert rejected == [2, 5]
    assert dict(state.calls.refused) == {"ProvisionedThroughputExceededException": 2}
    stored = {record.partition_key for record in state.records("orders")}
    assert stored == {"0", "1", "3", "4", "6"}


def test_errors_survive_pickling() -> None:
    error = KinesisError("InternalFailure", "text", status=500)
    lost = NoAnswer(delay_ms=3, applied=True)
    again, lost_again = pickle.loads(pickle.dumps((error, lost)))
    assert (again.code, again.message, again.status) == ("InternalFailure", "text", 500)
    assert (lost_again.delay_ms, lost_again.applied) == (3, True)
