"""Answers of Kinesis as values, whichever way they are decoded, and the times of requests."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from hypothesis import example, given
from hypothesis import strategies as st

from spark_ssp.grouping.identifiers import HashRange
from spark_ssp.kinesis_source.client import messages
from spark_ssp.kinesis_source.client.messages import DECODERS, parse_outcome, register_exact_times
from spark_ssp.kinesis_source.model.shard import EpochMillis, RecordPage

NOW = EpochMillis(1_700_000_000_123)


class _Raw:
    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> Iterator[bytes]:
        yield self._body


class _Answers:
    """A boto3 client whose every call gets the body at hand, without a network."""

    def __init__(self, *, fast: bool) -> None:
        self.client = boto3.client(
            "kinesis",
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(retries={"total_max_attempts": 1}),
        )
        send: Callable[..., Any] = self._send
        self.client.meta.events.register("before-send.kinesis.GetRecords", send)
        self._body = b""
        if fast:
            messages.register_parser(self.client.meta.events)

    def _send(self, request: Any, **_: object) -> AWSResponse:
        headers = {"content-type": "application/x-amz-json-1.1"}
        return AWSResponse(request.url, 200, headers, _Raw(self._body))  # type: ignore[arg-type]

    def page(self, body: bytes) -> RecordPage:
        self._body = body
        return messages.parse_page(self.client.get_records(ShardIterator="i"), NOW)


@pytest.fixture(scope="module")
def ours() -> _Answers:
    return _Answers(fast=True)


@pytest.fixture(scope="module")
def theirs() -> _Answers:
    return _Answers(fast=False)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


hash_keys = st.integers(0, (1 << 128) - 1).map(str)
arrivals = st.one_of(
    st.integers(0, 4_000_000_000),
    st.integers(0, 4_000_000_000_000).map(lambda millis: millis / 1000),
)
plain_records = st.fixed_dictionaries(
    {
        "SequenceNumber": st.integers(0, 1 << 186).map(str),
        "ApproximateArrivalTimestamp": arrivals,
        "Data": st.binary(max_size=60).map(encoded),
    },
    optional={
        "PartitionKey": st.text(min_size=1, max_size=20),
        "EncryptionType": st.sampled_from(["NONE", "KMS"]),
    },
)
odd_records = st.fixed_dictionaries(
    {
        "SequenceNumber": st.integers(0, 1 << 186).map(str),
        "Data": st.binary(max_size=60).map(encoded),
    },
    optional={
        "ApproximateArrivalTimestamp": st.one_of(st.none(), arrivals, arrivals.map(str)),
        "PartitionKey": st.one_of(st.none(), st.text(max_size=20)),
        "Unheard": st.one_of(st.none(), st.lists(st.integers())),
    },
)
children = st.fixed_dictionaries(
    {
        "ShardId": st.integers(0, 99).map(lambda number: f"shardId-{number:012}"),
        "ParentShards": st.lists(st.sampled_from(["shardId-1", "shardId-0"]), max_size=2),
        "HashKeyRange": st.fixed_dictionaries(
            {"StartingHashKey": hash_keys, "EndingHashKey": hash_keys}
        ),
    }
)


def answers(records: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"Records": st.lists(records, max_size=8)},
        optional={
            "NextShardIterator": st.one_of(st.none(), st.text(min_size=1, max_size=30)),
            "MillisBehindLatest": st.one_of(st.none(), st.integers(0, 10**10)),
            "ChildShards": st.one_of(st.none(), st.lists(children, max_size=3)),
        },
    )


def bodies(answer: dict[str, Any]) -> Iterator[bytes]:
    yield json.dumps(answer, ensure_ascii=True).encode()
    yield json.dumps(answer, ensure_ascii=False, indent=1).encode()
    yield json.dumps(answer).replace("/", "\\/").encode()


def contents(page: RecordPage) -> list[Any]:
    """Return columns as lists, for comparison."""
    return [
        list(page.sequence_numbers),
        list(page.partition_keys),
        list(page.arrival_ms),
        [bytes(data) for data in page.data],
        page.next_iterator,
        page.millis_behind_latest,
        page.service_time,
    ]


@given(answer=answers(plain_records))
def test_plain_pages_take_the_fast_way_to_the_same_result(
    ours: _Answers, theirs: _Answers, answer: dict[str, Any]
) -> None:
    for body in bodies(answer):
        assert messages.DECODERS["GetRecords"](body) is not None
        assert contents(ours.page(body)) == contents(theirs.page(body))


base64_like = st.text(st.sampled_from("AQgwx09+/=-_ \n"), max_size=12)
numbers_like = st.one_of(
    st.sampled_from(["0", "-1", "1.5", "1e3", "1E+9", "1e400", "-1e30", "4e12"]),
    st.sampled_from(["9007199254740993", "01", "true", '"1"']),
)


@given(data=base64_like, arrival=numbers_like, behind=numbers_like)
def test_the_fast_way_takes_nothing_that_the_slow_one_reads_otherwise(
    ours: _Answers, theirs: _Answers, data: str, arrival: str, behind: str
) -> None:
    body = (
        body_of(record(Data=data))
        .replace(b"1700000000.001", arrival.encode())
        .replace(b'"MillisBehindLatest": 0', b'"MillisBehindLatest": ' + behind.encode())
    )
    if messages.DECODERS["GetRecords"](body) is not None:
        assert contents(ours.page(body)) == contents(theirs.page(body))


def test_a_name_that_comes_twice_counts_as_the_slow_way_has_it(
    ours: _Answers, theirs: _Answers
) -> None:
    body = body_of(record()).replace(
        b'"PartitionKey": "k"', b'"PartitionKey":"a","PartitionKey":"b"'
    )
    assert messages.DECODERS["GetRecords"](body) is not None
    assert contents(ours.page(body)) == contents(theirs.page(body))


@given(answer=answers(st.one_of(plain_records, odd_records)))
def test_odd_pages_come_out_the_same(
    ours: _Answers, theirs: _Answers, answer: dict[str, Any]
) -> None:
    for body in bodies(answer):
        assert contents(ours.page(body)) == contents(theirs.page(body))


def record(**changes: object) -> dict[str, object]:
    plain: dict[str, object] = {
        "SequenceNumber": "49590338271490256608559692538361571095921575989136588898",
        "ApproximateArrivalTimestamp": 1_700_000_000.001,
        "Data": encoded(b"x"),
        "PartitionKey": "k",
    }
    return {key: value for key, value in (plain | changes).items() if value is not ...}


def body_of(*records: object, **more: object) -> bytes:
    return json.dumps({"Records": records, "MillisBehindLatest": 0} | more).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'{"Records":null}',
        b'{"message":"no records"}',
        b'{"Records":[{"SequenceNumber":"1","PartitionKey":"k","Approx',
        b"<html>not JSON</html>",
        b"\xff\xfe",
        body_of(None),
        body_of(record(SequenceNumber=1)),
        body_of(record(SequenceNumber=...)),
        body_of(record(Data=None)),
        body_of(record(Data="x")),
        body_of(record(Data="é")),
        body_of(record(Data="AA")),
        body_of(record(Data="AA==AA==")),
        body_of(record(ApproximateArrivalTimestamp=...)),
        body_of(record(ApproximateArrivalTimestamp="2023-11-14T22:13:20Z")),
        body_of(record(ApproximateArrivalTimestamp=True)),
        body_of(record(ApproximateArrivalTimestamp=4_000_000_000_000)),
        body_of(record(), MillisBehindLatest="0"),
        body_of(record(), NextShardIterator=7),
        body_of(record()).replace(b'"k"', b'"\\ud800"'),
        body_of(record()).replace(b'"k"', b'"\xff"'),
        body_of(record()) + b"}",
    ],
)
def test_anything_odd_is_left_to_the_slow_way(body: bytes) -> None:
    assert messages.DECODERS["GetRecords"](body) is None


def test_a_record_without_partition_key_takes_the_fast_way_and_has_none(
    ours: _Answers, theirs: _Answers
) -> None:
    """As a producer may put it under the record distribution strategy AUTO."""
    body = body_of(record(PartitionKey=...), record(PartitionKey=None), record(PartitionKey="k"))
    assert messages.DECODERS["GetRecords"](body) is not None
    keys = [None, None, "k"]
    assert list(ours.page(body).partition_keys) == list(theirs.page(body).partition_keys) == keys


def test_a_lone_surrogate_becomes_a_replacement_character(ours: _Answers) -> None:
    page = ours.page(body_of(record()).replace(b'"k"', b'"a\\ud800b"'))
    assert list(page.partition_keys) == ["a\ufffdb"]


def test_a_missing_arrival_time_is_the_time_of_the_answer(ours: _Answers) -> None:
    page = ours.page(body_of(record(ApproximateArrivalTimestamp=...), record()))
    assert list(page.arrival_ms) == [NOW, 1_700_000_000_001]


@pytest.mark.parametrize("millis", [0, 1, 999, 1_700_000_000_001, 1_795_270_484_186])
def test_no_millisecond_is_lost(ours: _Answers, millis: int) -> None:
    page = ours.page(body_of(record(ApproximateArrivalTimestamp=millis / 1000)))
    assert list(page.arrival_ms) == [millis]


def test_without_a_reported_lag_only_an_empty_page_is_the_latest_record(ours: _Answers) -> None:
    for behind in ({}, {"MillisBehindLatest": None}):
        full = json.dumps({"Records": [record()]} | behind).encode()
        empty = json.dumps({"Records": []} | behind).encode()
        assert ours.page(full).millis_behind_latest > 0
        assert ours.page(empty).millis_behind_latest == 0


@pytest.mark.parametrize(
    ("count", "data"),
    [(10, bytes(range(256)) * 4096), (10_000, bytes(range(200)))],
    ids=["few big records", "many small ones"],
)
def test_a_page_as_large_as_the_service_gives(
    ours: _Answers, theirs: _Answers, count: int, data: bytes
) -> None:
    """10 MiB, or 10,000 records: the fast way takes it, to the same result."""
    body = body_of(
        *[
            record(Data=encoded(data), SequenceNumber=str(n), PartitionKey=f"ключ-{n}")
            for n in range(count)
        ]
    )
    assert messages.DECODERS["GetRecords"](body) is not None
    page = ours.page(body)
    assert len(page) == count
    assert all(piece == data for piece in page.data)
    assert contents(page) == contents(theirs.page(body))


def test_the_slow_parser_never_sees_the_records_that_were_parsed_already(ours: _Answers) -> None:
    seen: list[bytes] = []

    def spy(response_dict: dict[str, Any], **_: object) -> None:
        seen.append(response_dict["body"])

    events = ours.client.meta.events
    events.register_last("before-parse.kinesis.GetRecords", spy)
    try:
        ours.page(body_of(record(Data=encoded(b"private"))))
    finally:
        events.unregister("before-parse.kinesis.GetRecords", spy)
    assert seen == [b'{"Records":[]}']


@pytest.mark.parametrize(
    ("strategy", "by_key"),
    [
        ({}, True),
        ({"StreamModeDetails": {"StreamMode": "PROVISIONED"}}, True),
        ({"StreamModeDetails": {"StreamMode": "ON_DEMAND"}}, None),
        ({"RecordDistributionStrategy": "USER_PARTITION_KEY"}, True),
        ({"RecordDistributionStrategy": "AUTO"}, False),
        ({"RecordDistributionStrategy": "UNHEARD_OF"}, False),
    ],
)
def test_where_records_are_placed(strategy: dict[str, str], by_key: bool | None) -> None:
    summary = {
        "StreamName": "orders",
        "StreamARN": "arn:aws:kinesis:us-east-1:000000000000:stream/orders",
        "StreamCreationTimestamp": datetime(2026, 1, 1, tzinfo=UTC),
        "RetentionPeriodHours": 24,
    }
    answer = {"StreamDescriptionSummary": summary | strategy}
    assert messages.parse_description(answer).placed_by_key is by_key


@pytest.mark.parametrize(
    ("entry", "parents", "closed"),
    [
        ({}, (), False),
        ({"ParentShardId": "b", "AdjacentParentShardId": "a"}, ("a", "b"), False),
        ({"ParentShardId": "b"}, ("b",), False),
        ({"ParentShardId": None, "AdjacentParentShardId": None}, (), False),
        ({"EndingSequenceNumber": "9223372036854775807"}, (), True),
    ],
)
def test_shards(entry: dict[str, str], parents: tuple[str, ...], closed: bool) -> None:
    ending = {key: value for key, value in entry.items() if key == "EndingSequenceNumber"}
    lineage = {key: value for key, value in entry.items() if key != "EndingSequenceNumber"}
    (shard,) = messages.parse_shards(
        {
            "Shards": [
                lineage
                | {
                    "ShardId": "shardId-000000000001",
                    "HashKeyRange": {"StartingHashKey": "1", "EndingHashKey": str((1 << 128) - 1)},
                    "SequenceNumberRange": {"StartingSequenceNumber": "49"} | ending,
                }
            ]
        }
    )
    assert (shard.parents, shard.closed) == (parents, closed)
    assert shard.hash_range == HashRange(first=1, last=(1 << 128) - 1)


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("Tue, 14 Nov 2023 22:13:20 GMT", 1_700_000_000_000),
        ("Tue, 14 Nov 2023 22:13:20 -0000", 1_700_000_000_000),
        ("once upon a time", None),
        ("", None),
    ],
)
def test_the_date_of_an_answer(text: str, millis: int | None) -> None:
    answer = {"ResponseMetadata": {"HTTPHeaders": {"date": text}}}
    assert messages.parse_date(answer) == millis


def test_no_date_at_all() -> None:
    assert messages.parse_date({}) is None


@given(st.integers(0, 4_000_000_000_000))
def test_times_survive_the_way_to_boto3_and_back(millis: int) -> None:
    assert messages.to_epoch_ms(messages.to_datetime(EpochMillis(millis))) == millis


@pytest.mark.parametrize(
    ("end", "following"),
    [
        ({"ContinuationSequenceNumber": "7"}, "7"),
        ({"ChildShards": [{"ShardId": "a", "ParentShards": ["b"]}]}, None),
        ({"ContinuationSequenceNumber": None, "ChildShards": []}, "refused"),
        ({}, "refused"),
    ],
)
def test_an_event_without_a_continuation_has_child_shards(
    end: dict[str, Any], following: str | None
) -> None:
    body = json.dumps({"Records": [], "MillisBehindLatest": 0} | end).encode()
    if following == "refused":
        with pytest.raises(ValueError, match="neither a continuation"):
            messages.parse_event(body, NOW)
    else:
        assert messages.parse_event(body, NOW).next_iterator == following


NUMBERS = st.sampled_from([f"496{'0' * 53}", f"496{'9' * 53}", "7", "\\", '"', "}"])
SHARDS = st.sampled_from(["shardId-000000000000", "shardId-000000000071", "s", "}", 'a"b', "é"])
STORED = st.fixed_dictionaries({"SequenceNumber": NUMBERS, "ShardId": SHARDS})
REFUSED = st.fixed_dictionaries({"ErrorCode": st.just("E"), "ErrorMessage": SHARDS})


@given(
    st.lists(STORED, min_size=1, max_size=8) | st.lists(STORED | REFUSED, min_size=1, max_size=8),
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.sampled_from([[], ["EncryptionType"]]),
    st.booleans(),
)
@example([{"SequenceNumber": "7", "ShardId": 'a"b'}], (",", ":"), [], True)
def test_each_entry_has_its_shard_or_its_code(
    results: list[dict[str, str]],
    separators: tuple[str, str],
    before: list[str],
    is_count_first: bool,
) -> None:
    answer: dict[str, Any] = dict.fromkeys(before, "KMS")
    failed = {"FailedRecordCount": sum("ErrorCode" in one for one in results)}
    answer |= failed | {"Records": results} if is_count_first else {"Records": results} | failed
    found = parse_outcome(_decoded(json.dumps(answer, separators=separators)), len(results))
    assert list(found.shards) == [one.get("ShardId") for one in results]
    assert list(found.codes or [None] * len(results)) == [one.get("ErrorCode") for one in results]
    assert list(found.shards[1:3]) == [one.get("ShardId") for one in results[1:3]]


@pytest.mark.parametrize("entries", [0, 1, 3])
def test_an_answer_with_another_number_of_results_is_refused(entries: int) -> None:
    stored = {"SequenceNumber": "7", "ShardId": "shardId-000000000000"}
    answer = {"FailedRecordCount": 0, "Records": [stored, stored]}
    with pytest.raises(ValueError, match="results"):
        parse_outcome(_decoded(json.dumps(answer, separators=(",", ":"))), entries)


def _decoded(body: str) -> Any:
    decoded = DECODERS["PutRecords"](body.encode())
    assert decoded is not None
    return decoded


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
