"""The contract of `kinesis_source.service.KinesisService`, over each of its implementations.

boto3 against the embedded service, boto3 against kinesis-mock, and the in-process stand-in that
unit tests and simulations use: what holds for one holds for all.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import boto3
import pytest

from embedded_kinesis import EmbeddedKinesis
from embedded_kinesis.faults import (
    AccessDenied,
    DropConnection,
    EmptyPage,
    ExpiredIterator,
    Fault,
    Faults,
    InternalFailure,
    LostReply,
    Throttle,
)
from kinesis_source.client import Boto3Kinesis
from kinesis_source.credentials import client_config
from kinesis_source.model import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    RecordPage,
    SequenceNumber,
    ShardIterator,
    StreamRef,
    TrimHorizon,
)
from kinesis_source.options import ConnectionOptions
from kinesis_source.retries import RetrySettings
from kinesis_source.service import (
    ExpiredIteratorError,
    InvalidPositionError,
    KinesisService,
    ShardNotFoundError,
    ThrottledError,
)
from ssp_common.errors import (
    AccessError,
    ServiceUnavailableError,
    SspError,
    StreamNotFoundError,
)
from task_grouping.identifiers import HashRange, ShardId, StreamName
from tests.contract.services import MIDDLE, Quirk, Service
from tests.support.in_process import InProcessKinesis

FIRST = ShardId("shardId-000000000000")
SECOND = ShardId("shardId-000000000001")
ABSENT = StreamRef(name=StreamName("absent"))
LAST_KEY = (1 << 128) - 1
ATTEMPTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An implementation, and the service behind it to put into. `faults`: what can go wrong."""

    kinesis: KinesisService
    service: Service
    faults: Faults | None = None

    def stream(self, shards: int = 1) -> StreamRef:
        return StreamRef(name=StreamName(self.service.stream(shards)))

    def put(self, stream: StreamRef, *data: str, key: int = 0) -> list[SequenceNumber]:
        return [SequenceNumber(n) for n in self.service.put(stream.name, *data, key=key)]

    def open(self, stream: StreamRef, position: Position, shard: ShardId = FIRST) -> ShardIterator:
        return self.kinesis.open_iterator(stream, shard, position)

    def page(
        self, stream: StreamRef, iterator: ShardIterator, shard: ShardId = FIRST, limit: int = 1000
    ) -> RecordPage:
        return self.kinesis.get_records(stream, shard, iterator, limit=limit)

    def texts(self, stream: StreamRef, iterator: ShardIterator, shard: ShardId = FIRST) -> str:
        """All the data from there to the first empty page or the end, put together."""
        token: ShardIterator | None = iterator
        found = ""
        while token is not None:
            page = self.page(stream, token, shard)
            found += b"".join(page.data).decode()
            token = page.next_iterator if len(page) else None
        return found


class _Clock:
    def __init__(self) -> None:
        self._shift_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._shift_ms

    def advance(self, milliseconds: int) -> None:
        self._shift_ms += milliseconds


def over_boto3(endpoint_url: str) -> Boto3Kinesis:
    session = boto3.Session(
        region_name="us-east-1", aws_access_key_id="local", aws_secret_access_key="local"
    )
    config = client_config(ConnectionOptions())
    return Boto3Kinesis(
        session.client("kinesis", endpoint_url=endpoint_url, config=config),
        retry=RetrySettings(max_attempts=ATTEMPTS, max_backoff=0.01),
    )


@pytest.fixture(scope="module")
def embedded_subjects() -> Iterator[dict[str, Subject]]:
    clock = _Clock()
    with EmbeddedKinesis(clock=clock) as running:
        kinesis = over_boto3(running.endpoint_url)
        client = boto3.session.Session().client("kinesis", **running.client_settings())
        service = Service(
            name="embedded", client=client, now_ms=clock.now_ms, advance=clock.advance
        )
        in_process = InProcessKinesis(running.state, attempts=ATTEMPTS)
        yield {
            "boto3-embedded": Subject(kinesis=kinesis, service=service, faults=running.faults),
            "in-process": Subject(kinesis=in_process, service=service, faults=running.faults),
        }
        client.close()
        kinesis.close()


@pytest.fixture(scope="module")
def mock_subject(kinesis_mock: Service) -> Iterator[Subject]:
    kinesis = over_boto3(kinesis_mock.client.meta.endpoint_url)
    yield Subject(kinesis=kinesis, service=kinesis_mock)
    kinesis.close()


@pytest.fixture(params=["boto3-embedded", "boto3-kinesis-mock", "in-process"])
def subject(request: pytest.FixtureRequest) -> Subject:
    """Every implementation in turn."""
    if request.param == "boto3-kinesis-mock":
        found = request.getfixturevalue("mock_subject")
    else:
        found = request.getfixturevalue("embedded_subjects")[request.param]
    assert isinstance(found, Subject)
    return found


@pytest.fixture(params=["boto3-embedded", "in-process"])
def faulty(
    request: pytest.FixtureRequest, embedded_subjects: dict[str, Subject]
) -> Iterator[tuple[Subject, Faults]]:
    """The implementations whose service can be made to fail."""
    found = embedded_subjects[request.param]
    assert found.faults is not None
    yield found, found.faults
    found.faults.clear()


# --- Streams and shards ---------------------------------------------------------------------------


def test_a_stream_is_described(subject: Subject) -> None:
    before = subject.service.now_ms()
    stream = subject.stream(3)
    found = subject.kinesis.describe(stream)
    assert (found.name, found.open_shards) == (stream.name, 3)
    assert found.arn.endswith(f":stream/{stream.name}")
    assert found.retention_millis == 24 * 3_600_000
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
    names = subject.service.client.list_streams
    subject.service.until(lambda: stream.name not in names(Limit=10_000)["StreamNames"])
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
    assert all(before <= arrival <= after for arrival in page.arrival_millis)
    assert len(page) == 3
    assert page.millis_behind_latest == 0
    assert page.next_iterator is not None
    assert page.child_shards == ()


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
    arrivals = subject.page(stream, subject.open(stream, TrimHorizon())).arrival_millis
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


def test_a_closed_shard_ends_with_its_children(subject: Subject) -> None:
    stream = subject.stream()
    subject.put(stream, *"ab")
    children = subject.service.split(stream.name, FIRST, MIDDLE)
    token: ShardIterator | None = subject.open(stream, TrimHorizon())
    found = b""
    page = None
    while token is not None:
        page = subject.page(stream, token, limit=1)
        found += b"".join(page.data)
        token = page.next_iterator
    assert page is not None
    assert found == b"ab"
    assert [child.shard_id for child in page.child_shards] == children
    assert [child.parents for child in page.child_shards] == [(FIRST,), (FIRST,)]
    assert [child.hash_range for child in page.child_shards] == [
        HashRange(first=0, last=MIDDLE - 1),
        HashRange(first=MIDDLE, last=LAST_KEY),
    ]


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


# --- Faults ---------------------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[Subject, StreamRef, ShardIterator], object]] = {
    "DescribeStreamSummary": lambda subject, stream, _: subject.kinesis.describe(stream),
    "ListShards": lambda subject, stream, _: subject.kinesis.list_shards(stream),
    "GetShardIterator": lambda subject, stream, _: subject.open(stream, TrimHorizon()),
    "GetRecords": lambda subject, stream, token: subject.page(stream, token),
}


@pytest.mark.parametrize(
    "fault", [Throttle(), InternalFailure(), InternalFailure(status=503), DropConnection()], ids=str
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_transient_faults(faulty: tuple[Subject, Faults], operation: str, fault: Fault) -> None:
    subject, faults = faulty
    stream = subject.stream()
    token = subject.open(stream, TrimHorizon())
    work = OPERATIONS[operation]
    injected = faults.add(fault, operation=operation, count=ATTEMPTS - 1)
    work(subject, stream, token)
    assert injected.hits == ATTEMPTS - 1
    injected = faults.add(fault, operation=operation, count=None)
    with pytest.raises(ServiceUnavailableError, match=stream.name):
        work(subject, stream, token)
    assert injected.hits == ATTEMPTS


@pytest.mark.parametrize("fault", [Throttle(), InternalFailure(), DropConnection()], ids=str)
def test_an_impatient_call_tries_once(faulty: tuple[Subject, Faults], fault: Fault) -> None:
    subject, faults = faulty
    stream = subject.stream()
    token = subject.open(stream, TrimHorizon())
    injected = faults.add(fault, count=None)
    with pytest.raises(ThrottledError):
        subject.kinesis.get_records(stream, FIRST, token, limit=1, patience=False)
    with pytest.raises(ThrottledError):
        subject.kinesis.open_iterator(stream, FIRST, TrimHorizon(), patience=False)
    assert injected.hits == 2


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_permission_is_said_at_once(faulty: tuple[Subject, Faults], operation: str) -> None:
    subject, faults = faulty
    stream = subject.stream()
    token = subject.open(stream, TrimHorizon())
    injected = faults.add(AccessDenied(), operation=operation, count=None)
    with pytest.raises(AccessError) as caught:
        OPERATIONS[operation](subject, stream, token)
    assert operation in str(caught.value)
    assert stream.name in str(caught.value)
    assert injected.hits == 1


def test_an_expired_iterator_is_said_at_once(faulty: tuple[Subject, Faults]) -> None:
    subject, faults = faulty
    stream = subject.stream()
    token = subject.open(stream, TrimHorizon())
    injected = faults.add(ExpiredIterator(), count=None, operation="GetRecords")
    with pytest.raises(ExpiredIteratorError):
        subject.page(stream, token)
    assert injected.hits == 1


def test_a_lost_answer_to_a_read_loses_no_record(faulty: tuple[Subject, Faults]) -> None:
    subject, faults = faulty
    stream = subject.stream()
    subject.put(stream, *"abc")
    token = subject.open(stream, TrimHorizon())
    injected = faults.add(LostReply(), operation="GetRecords", count=2)
    assert subject.texts(stream, token) == "abc"
    assert injected.hits == 2


def test_an_empty_page_is_not_the_tip(faulty: tuple[Subject, Faults]) -> None:
    subject, faults = faulty
    stream = subject.stream()
    subject.put(stream, "a")
    faults.add(EmptyPage(millis_behind_latest=5000), operation="GetRecords")
    page = subject.page(stream, subject.open(stream, TrimHorizon()))
    assert (len(page), page.millis_behind_latest) == (0, 5000)
    assert page.next_iterator is not None
    assert subject.texts(stream, page.next_iterator) == "a"


def test_errors_survive_the_way_to_the_driver(faulty: tuple[Subject, Faults]) -> None:
    subject, faults = faulty
    stream = subject.stream()
    faults.add(InternalFailure(), operation="DescribeStreamSummary", count=None)
    with pytest.raises(SspError) as caught:
        subject.kinesis.describe(stream)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (type(caught.value), str(caught.value))
