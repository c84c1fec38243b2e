"""Many subscriptions on the connection of a task: HTTP/2 by awscrt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import psutil
import pytest

from spark_ssp.kinesis_source.client.api import SubscriptionError
from spark_ssp.kinesis_source.client.boto3_client import connect, disconnect
from spark_ssp.kinesis_source.client.subscriptions import open_subscriber
from spark_ssp.kinesis_source.model.shard import TrimHorizon
from spark_ssp.testing.kinesis import EmbeddedKinesis
from spark_ssp.testing.kinesis.state.faults import CutSubscription
from tests.support.kinesis.certificates import write_certificates
from tests.support.kinesis.http2 import Http2Kinesis, Traffic
from tests.support.kinesis.pushed_stream import PushedStream, connection_to, put_numbers

SHARDS = 64
RECORDS = 640
LARGE_BYTES = 50_000
LARGE_RECORDS = 8
"""The number of large records in each shard."""
TIMEOUT_MS = 30_000


class Pushing:
    """A service with HTTP/2. Its streams have a consumer."""

    def __init__(self, kinesis: EmbeddedKinesis, server: Http2Kinesis) -> None:
        self.kinesis = kinesis
        self.url = server.endpoint_url
        self.connection = connection_to(self.url, timeout_ms=TIMEOUT_MS)
        self._server = server
        self._names = (f"stream-{number}" for number in count())

    @property
    def traffic(self) -> Traffic:
        return replace(self._server.traffic)

    def stream(self, shards: int = SHARDS) -> PushedStream:
        """Return a new stream of `RECORDS` records."""
        name = next(self._names)
        self.kinesis.state.create_stream(name, shards=shards)
        client = connect(self.connection).client
        return self._consumed(name, put_numbers(client, name, RECORDS))  # type: ignore[arg-type]

    def large_stream(self) -> PushedStream:
        name, state, data = next(self._names), self.kinesis.state, bytes(LARGE_BYTES)
        state.create_stream(name, shards=SHARDS)
        last: dict[str, str] = {}
        for shard in (f"shardId-{number:012}" for number in range(SHARDS)):
            for _ in range(LARGE_RECORDS):
                last[shard] = state.put(name, "key", data, shard_id=shard).sequence_number
        return self._consumed(name, last)

    def _consumed(self, name: str, last: dict[str, str]) -> PushedStream:
        consumer = self.kinesis.state.register_consumer(name, "etl").arn
        return PushedStream.of(name, consumer, last, self.connection)

    def fetches(self, stream: PushedStream) -> int:
        """Return the number of calls of GetRecords."""
        return self.kinesis.calls.count("GetRecords", stream=stream.name)


@contextmanager
def pushing(*, max_streams: int = 128, hold: int = 0) -> Iterator[Pushing]:
    with (
        EmbeddedKinesis() as kinesis,
        Http2Kinesis(kinesis.state, max_streams=max_streams, hold=hold) as server,
        pytest.MonkeyPatch.context() as environment,
    ):
        environment.setenv("AWS_CA_BUNDLE", str(server.authority))
        yield Pushing(kinesis, server)
        disconnect()


@pytest.fixture(scope="module")
def service() -> Iterator[Pushing]:
    with pushing() as found:
        yield found


def test_sixty_four_shards_share_a_connection(service: Pushing) -> None:
    before = service.traffic
    stream = service.stream()
    rows = stream.rows()
    assert sorted(int(row.data) for row in rows) == list(range(RECORDS))
    assert len({row.shard for row in rows}) == SHARDS
    assert service.traffic.connections == before.connections + 1
    assert service.traffic.streams == before.streams + SHARDS
    assert service.fetches(stream) == 0


def test_sixty_four_shards_are_read_side_by_side() -> None:
    """The service answers none of their subscriptions before it has all of them."""
    with pushing(hold=SHARDS) as service:
        stream = service.stream()
        assert sorted(int(row.data) for row in stream.rows()) == list(range(RECORDS))
        assert service.fetches(stream) == 0
        assert (service.traffic.connections, service.traffic.streams) == (1, SHARDS)


def test_the_bytes_in_flight_are_bounded(service: Pushing) -> None:
    """Whenever a batch is taken, the service has sent at most `maxBytesInFlight` ahead of it."""
    limit = 8 << 20
    stream = service.large_stream()
    before = service.traffic.sent
    taken, ahead = 0, 0.0
    for batch in stream.batches(max_bytes_in_flight=limit):
        ahead = max(ahead, service.traffic.sent - before - taken * LARGE_BYTES * 4 / 3)
        taken += batch.num_rows
    assert taken == SHARDS * LARGE_RECORDS
    assert service.fetches(stream) == 0
    assert service.traffic.most_in_flight <= limit / 2
    # Records are held decoded, at three quarters of their size on the wire.
    assert ahead < limit * 4 / 3 < (service.traffic.sent - before) / 2


def test_a_task_that_is_ended_early_receives_no_more(service: Pushing) -> None:
    stream = service.large_stream()
    before = service.traffic.sent
    batches = stream.batches(max_bytes_in_flight=8 << 20)
    assert next(batches).num_rows
    batches.close()  # type: ignore[attr-defined]
    assert service.traffic.sent - before < SHARDS * LARGE_RECORDS * LARGE_BYTES


def test_tasks_leave_neither_threads_nor_connections(service: Pushing) -> None:
    """Python workers run one task after the other."""
    process = psutil.Process()
    streams = [service.stream(shards=4) for _ in range(10)]
    cut = CutSubscription(after_events=1)
    service.kinesis.faults.add(cut, operation="SubscribeToShard", stream=streams[1].name)
    found = []
    for stream in streams:
        assert len(stream.rows()) == RECORDS
        found.append((process.num_threads(), process.num_fds()))
    # The first tasks start threads and connections that the process keeps.
    assert min(found[5:]) <= found[2]


def test_a_connection_without_room_is_replaced() -> None:
    """The streams of shards that are finished stay open."""
    with pushing(max_streams=24) as service:
        stream = service.stream()
        assert sorted(int(row.data) for row in stream.rows()) == list(range(RECORDS))
        assert service.fetches(stream) == 0
        assert service.traffic.streams == SHARDS
        assert SHARDS / 24 < service.traffic.connections < SHARDS


def test_a_certificate_of_another_authority_is_refused(
    service: Pushing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_certificates(tmp_path, "server")
    shard = service.stream(shards=1).slot.shards[0]
    assert shard.consumer is not None
    before = service.traffic
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    subscriber = open_subscriber(connection_to(service.url, timeout_ms=1_000), window=1 << 20)
    with pytest.raises(SubscriptionError):
        subscriber.subscribe(shard.consumer, shard.key, TrimHorizon())
    subscriber.close()
    assert service.traffic == before
