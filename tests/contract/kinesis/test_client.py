"""The contract of `KinesisService`, over each of its implementations. boto3 against the embedded
service, boto3 against kinesis-mock, and the in-process stand-in that unit tests and simulations
use: the contract holds for all of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_ssp.common.errors import StreamNotFoundError
from spark_ssp.grouping.identifiers import HashRange, ShardId, StreamName
from spark_ssp.kinesis_source.client.api import (
    ExpiredIteratorError,
    InvalidPositionError,
    KinesisService,
    ShardNotFoundError,
)
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    ShardIterator,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.testing.kinesis.state.faults import Faults
from tests.contract.services import MIDDLE, Quirk
from tests.contract.subjects import ABSENT, FIRST, LAST_KEY, SECOND, Subject

# --- Streams and shards ---------------------------------------------------------------------------


def test_a_stream_is_described(subject: Subject) -> None:
    before = subject.service.now_ms()
    stream = subject.stream(3)
    found = subject.kinesis.describe(stream)
    assert found.name == stream.name
    assert found.arn.endswith(f":stream/{stream.name}")
    assert found.retention_ms == 24 * 3_600_000
    # AWS gives this time in whole seconds, emulators in milliseconds.
    assert before - 1000 <= found.created <= subject.service.now_ms()
    assert subject.kinesis.describe(stream) == found
    assert subject.kinesis.describe(StreamRef(name=stream.name, arn=found.arn)) == found


def test_a_recreated_stream_has_another_creation_time(subject: Subject) -> None:
    stream = subject.stream()
    before = subject.kinesis.describe(stream).created
    subject.service.client.delete_stream(StreamName=stream.name)

    def gone() -> bool:
        try:
            subject.kinesis.describe(stream)
        except StreamNotFoundError:
            return True
        return False

    subject.service.until(gone)
    subject.service.until(lambda: subject.service.now_ms() > before + 1)
    subject.service.until(lambda: stream.name not in subject.service.stream_names())
    subject.service.client.create_stream(StreamName=stream.name, ShardCount=1)
    subject.service.settled(stream.name)
    assert subject.kinesis.describe(stream).created > before


def test_shards_are_listed_with_their_lineage(subject: Subject) -> None:
    stream = subject.stream(2)
    third, fourth = subject.service.split(stream.name, FIRST, 1000)
    fifth = subject.service.merge(stream.name, fourth, SECOND)
    for ref in (stream, StreamRef(name=stream.name, arn=subject.kinesis.describe(stream).arn)):
        shards = subject.kinesis.list_shards(ref)
        ids = [shard.shard_id for shard in shards]
        assert ids == sorted(ids) == [FIRST, SECOND, third, fourth, fifth]
        assert [shard.parents for shard in shards] == [
            (),
            (),
            (FIRST,),
            (FIRST,),
            (SECOND, ShardId(fourth)),
        ]
        assert [shard.closed for shard in shards] == [True, True, False, True, False]
        assert [shard.hash_range for shard in shards[2:]] == [
            HashRange(first=0, last=999),
            HashRange(first=1000, last=shards[0].hash_range.last),
            HashRange(first=1000, last=LAST_KEY),
        ]
        assert all(int(shard.first_sequence_number) > 0 for shard in shards)


def test_more_shards_than_a_page_of_the_list_holds(faulty: tuple[Subject, Faults]) -> None:
    subject, _ = faulty
    shards = subject.kinesis.list_shards(subject.stream(1234))
    assert [shard.shard_id for shard in shards] == [f"shardId-{n:012}" for n in range(1234)]


@pytest.mark.parametrize(
    "call",
    [
        lambda kinesis: kinesis.describe(ABSENT),
        lambda kinesis: kinesis.list_shards(ABSENT),
        lambda kinesis: kinesis.open_iterator(ABSENT, FIRST, TrimHorizon()),
    ],
    ids=["describe", "list", "open"],
)
def test_a_stream_that_does_not_exist(
    subject: Subject, call: Callable[[KinesisService], object]
) -> None:
    with pytest.raises(StreamNotFoundError, match="absent"):
        call(subject.kinesis)


def test_a_shard_that_does_not_exist(subject: Subject) -> None:
    stream = subject.stream()
    with pytest.raises(ShardNotFoundError, match=r"shardId-000000000077"):
        subject.open(stream, TrimHorizon(), ShardId("shardId-000000000077"))


# --- Reading --------------------------------------------------------------------------------------


def test_a_page_holds_what_was_put(subject: Subject) -> None:
    stream = subject.stream()
    data = [b"", bytes(range(256)), "ü".encode()]
    keys = ["k", 'quote " back \\ slash', "ключ\n\U0001f600"]
    before = subject.service.now_ms()
    numbers = [
        subject.service.client.put_record(StreamName=stream.name, PartitionKey=key, Data=value)[
            "SequenceNumber"
        ]
        for key, value in zip(keys, data, strict=True)
    ]
    page = subject.page(stream, subject.open(stream, TrimHorizon()))
    after = subject.service.now_ms()
    assert list(page.sequence_numbers) == numbers
    assert list(page.partition_keys) == keys
    assert [bytes(value) for value in page.data] == data
    assert all(before <= arrival <= after for arrival in page.arrival_ms)
    assert len(page) == 3
    assert page.millis_behind_latest == 0
    assert page.next_iterator is not None


def test_pages_follow_each_other(subject: Subject) -> None:
    stream = subject.stream()
    subject.put(stream, *"abcde")
    token: ShardIterator | None = subject.open(stream, TrimHorizon())
    found, lags = [], []
    for _ in range(4):
        assert token is not None
        page = subject.page(stream, token, limit=2)
        found.append(b"".join(page.data))
        lags.append(page.millis_behind_latest > 0)
        token = page.next_iterator
    assert found == [b"ab", b"cd", b"e", b""]
    if not subject.service.has(Quirk.LAG_TO_THE_LAST_RECORD):
        assert lags == [True, True, False, False]


def test_a_record_without_partition_key_has_none(faulty: tuple[Subject, Faults]) -> None:
    subject, _ = faulty
    client, name = subject.service.client, StreamName("auto")
    client.create_stream(
        StreamName=name,
        StreamModeDetails={"StreamMode": "ON_DEMAND"},
        RecordDistributionStrategy="AUTO",
    )
    stream = StreamRef(name=name)
    puts = {
        None: client.put_record(StreamName=name, Data=b"x"),
        "k": client.put_record(StreamName=name, Data=b"x", PartitionKey="k"),
    }
    for key, put in puts.items():
        shard = ShardId(put["ShardId"])
        token = subject.kinesis.open_iterator(stream, shard, TrimHorizon())
        page = subject.page(stream, token, shard)
        assert list(page.partition_keys) == [key]
    described = subject.kinesis.describe(stream)
    assert not described.placed_by_key
    client.update_stream_record_distribution_strategy(
        StreamARN=described.arn, RecordDistributionStrategy="USER_PARTITION_KEY"
    )
    assert subject.kinesis.describe(stream, retry=False).placed_by_key
    client.delete_stream(StreamName=name)


def test_unusual_answers_hide_nothing(unusual: Subject) -> None:
    stream = unusual.stream()
    unusual.put(stream, *"abcde")
    unusual.service.split(stream.name, FIRST, MIDDLE)
    token: ShardIterator | None = unusual.open(stream, TrimHorizon())
    found, lags = [], []
    while token is not None:
        page = unusual.page(stream, token, limit=2)
        found.append(b"".join(page.data))
        lags.append(page.millis_behind_latest > 0)
        token = page.next_iterator
    assert found == [*[b"", b"", b"ab"], *[b"", b"", b"cd"], *[b"", b"", b"e"], *[b"", b"", b""]]
    assert lags == [True, True, False] * 4


def test_positions_by_record(subject: Subject) -> None:
    stream = subject.stream()
    numbers = subject.put(stream, *"abc")
    for at, exclusive, inclusive in ((0, "bc", "abc"), (1, "c", "bc"), (2, "", "c")):
        position = AfterRecord(sequence_number=numbers[at], sub=5)
        for is_inclusive, expected in ((False, exclusive), (True, inclusive)):
            token = subject.kinesis.open_iterator(stream, FIRST, position, inclusive=is_inclusive)
            assert subject.texts(stream, token) == expected


def test_positions_by_time_are_exact_to_the_millisecond(subject: Subject) -> None:
    stream = subject.stream()
    for text in "abc":
        subject.put(stream, text)
        start = subject.service.now_ms()
        subject.service.until(lambda start=start: subject.service.now_ms() > start + 1)  # type: ignore[misc]
    arrivals = subject.page(stream, subject.open(stream, TrimHorizon())).arrival_ms
    assert len(set(arrivals)) == 3
    for later, expected in ((0, ["abc", "bc", "c"]), (1, ["bc", "c", ""])):
        found = [
            subject.texts(
                stream, subject.open(stream, AtTimestamp(millis=EpochMillis(arrival + later)))
            )
            for arrival in arrivals
        ]
        assert found == expected


def test_the_service_takes_its_own_time(subject: Subject) -> None:
    stream = subject.stream()
    subject.put(stream, "a")
    now = AtTimestamp(millis=subject.kinesis.service_time())
    assert subject.texts(stream, subject.open(stream, now)) in ("", "a")


def test_a_time_of_the_future_is_taken_as_now(subject: Subject) -> None:
    stream = subject.stream()
    subject.put(stream, "a")
    far = AtTimestamp(millis=EpochMillis(subject.service.now_ms() + 86_400_000))
    token = subject.open(stream, far)
    assert subject.texts(stream, token) in ("", "a")
    subject.put(stream, "b")
    assert subject.texts(stream, token).endswith("b")


def test_a_closed_shard_ends(subject: Subject) -> None:
    stream = subject.stream()
    subject.put(stream, *"ab")
    subject.service.split(stream.name, FIRST, MIDDLE)
    token: ShardIterator | None = subject.open(stream, TrimHorizon())
    found = b""
    while token is not None:
        page = subject.page(stream, token, limit=1)
        found += b"".join(page.data)
        token = page.next_iterator
    assert found == b"ab"


def test_a_sequence_number_of_another_shard(subject: Subject) -> None:
    stream = subject.stream(2)
    (number,) = subject.put(stream, "a", key=MIDDLE)
    position = AfterRecord(sequence_number=number)
    for inclusive in (False, True):
        if subject.service.has(Quirk.FOREIGN_NUMBERS_PASS):
            assert subject.kinesis.open_iterator(stream, FIRST, position, inclusive=inclusive)
            continue
        with pytest.raises(InvalidPositionError):
            subject.kinesis.open_iterator(stream, FIRST, position, inclusive=inclusive)


def test_an_iterator_expires_after_five_minutes(subject: Subject) -> None:
    stream = subject.stream()
    subject.put(stream, "a")
    token = subject.open(stream, TrimHorizon())
    subject.service.advance(301_000)
    with pytest.raises(ExpiredIteratorError):
        subject.page(stream, token)
    assert subject.texts(stream, subject.open(stream, TrimHorizon())) == "a"


def test_the_services_time_is_near_and_never_ahead(subject: Subject) -> None:
    stream = subject.stream()
    token = subject.open(stream, TrimHorizon())
    for ahead in (0, 7_200_000):
        subject.service.advance(ahead)
        before = subject.service.now_ms()
        if ahead:
            token = subject.open(stream, TrimHorizon())
        page = subject.page(stream, token)
        told = subject.kinesis.service_time()
        after = subject.service.now_ms()
        # `Date` is in whole seconds, and a server may keep it for another one.
        assert before - 2001 <= page.service_time <= after
        assert before - 2001 <= told <= after


def test_threads_do_not_mix_their_answers(subject: Subject) -> None:
    stream = subject.stream(4)
    for number in range(4):
        subject.put(stream, *(f"{number}{n}," for n in range(20)), key=number * (1 << 126))

    def read(number: int) -> str:
        shard = ShardId(f"shardId-{number % 4:012}")
        return subject.texts(stream, subject.open(stream, TrimHorizon(), shard), shard)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(read, range(16)))
    assert found == ["".join(f"{number % 4}{n}," for n in range(20)) for number in range(16)]
