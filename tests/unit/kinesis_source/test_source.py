"""The stream reader as Spark drives it, without Spark: what is asked, when, and what is pickled."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

from spark_ssp.checkpoint.coordination.protocol import AgentSettings, Report, Status
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey
from spark_ssp.checkpoint.leases.lease_store import Capacity, TableSettings
from spark_ssp.common.errors import IncompatibleStateError, InvalidOptionsError
from spark_ssp.common.spark.pyspark_api import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)
from spark_ssp.grouping.identifiers import HashRange, WorkerId
from spark_ssp.kinesis_source.client import boto3_client
from spark_ssp.kinesis_source.leases import lease_worker
from spark_ssp.kinesis_source.options.values import ConnectionOptions
from spark_ssp.kinesis_source.source import KinesisStreamReader, SlotPartition
from spark_ssp.testing.kinesis import KinesisState, ManualClock
from spark_ssp.testing.kinesis.state.faults import Throttle
from tests.support.fakes.in_process import InProcessKinesis
from tests.support.kinesis.planning import shard_id

OPTIONS = {
    "streamName": "orders",
    "region": "us-east-1",
    "startingPosition": "trim_horizon",
    "minFetchPeriod": "200ms",
    "trigger": "processingTime",
    "awsAccessKeyId": "AKIAIOSFODNN7EXAMPLE",
    "awsSecretAccessKey": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
}


class Service:
    """The embedded service, and who asked for a connection to it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.state = KinesisState(clock=self.clock)
        self.state.create_stream("orders", 2)
        self.connected: list[ConnectionOptions] = []

    def connect(self, options: ConnectionOptions) -> InProcessKinesis:
        self.connected.append(options)
        return InProcessKinesis(self.state)

    def put(self, count: int) -> list[bytes]:
        data = [b"record-%02d" % number for number in range(count)]
        for text in data:
            self.state.put("orders", text.decode(), text)
        return data


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    service = Service()
    monkeypatch.setattr(boto3_client, "connect", service.connect)
    return service


@pytest.fixture
def reader(service: Service) -> Iterator[KinesisStreamReader]:
    reader = KinesisStreamReader(OPTIONS)
    yield reader
    reader.stop()


def through_spark(offset: dict[str, Any]) -> Any:
    """An offset as Spark gives it back."""
    return json.loads(json.dumps(offset))


def read(reader: KinesisStreamReader, start: Any, end: Any) -> list[dict[str, Any]]:
    """What the executors deliver, each with its own pickle of the reader and the partition."""
    rows: list[dict[str, Any]] = []
    for partition in reader.partitions(start, end):
        elsewhere: KinesisStreamReader = pickle.loads(pickle.dumps(reader))
        for batch in elsewhere.read(pickle.loads(pickle.dumps(partition))):
            rows += batch.to_pylist()
    return rows


# --- Building -------------------------------------------------------------------------------------


def test_building_does_nothing(service: Service) -> None:
    threads = set(threading.enumerate())
    reader = KinesisStreamReader(OPTIONS)
    reader.getDefaultReadLimit()
    reader.initialOffset()
    assert reader.reportLatestOffset() is None
    reader.commit({})
    reader.stop()
    assert service.connected == []
    assert set(threading.enumerate()) <= threads


def test_wrong_options_are_reported_when_it_is_built() -> None:
    with pytest.raises(InvalidOptionsError, match="slots"):
        KinesisStreamReader(OPTIONS | {"slots": "none"})


def test_a_pickle_holds_the_options_alone(service: Service, reader: KinesisStreamReader) -> None:
    service.put(10)
    before = pickle.dumps(reader)
    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert pickle.dumps(reader) == before
    copy: KinesisStreamReader = pickle.loads(before)
    assert copy.reportLatestOffset() is None
    assert copy.initialOffset() == reader.initialOffset()


def test_one_connection_serves_the_driver(service: Service, reader: KinesisStreamReader) -> None:
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.latestOffset(end, ReadAllAvailable())
    (options,) = service.connected
    assert options.region == "us-east-1"


# --- Offsets --------------------------------------------------------------------------------------


def test_the_offset_before_everything_never_changes(reader: KinesisStreamReader) -> None:
    first = reader.initialOffset()
    assert first == {"v": 1, "slots": 0, "streams": {}, "ssp": {}}
    reader.latestOffset(first, ReadAllAvailable())
    assert json.dumps(reader.initialOffset()) == json.dumps(first)


def test_a_batch_and_its_replay_in_another_process(
    service: Service, reader: KinesisStreamReader
) -> None:
    put = service.put(50)
    start = through_spark(reader.initialOffset())
    end = through_spark(reader.latestOffset(start, ReadAllAvailable()))
    rows = read(reader, start, end)
    assert sorted(row["data"] for row in rows) == sorted(put)
    assert {row["ssp"] for row in rows} == {0, 1}
    service.put(50)
    replayed = KinesisStreamReader(OPTIONS)
    assert read(replayed, start, end) == rows
    assert replayed.reportLatestOffset() is None  # planned from the two offsets alone


def test_without_news_the_offset_comes_back_to_the_letter(
    service: Service, reader: KinesisStreamReader
) -> None:
    service.put(10)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    stored = json.dumps(end)
    # Whatever made the text, it is the same text that comes back.
    shuffled = dict(reversed(json.loads(stored).items()))
    assert json.dumps(reader.latestOffset(shuffled, ReadAllAvailable())) == json.dumps(shuffled)
    assert json.dumps(reader.latestOffset(json.loads(stored), ReadAllAvailable())) == stored


def test_an_offset_of_another_version_is_refused_wherever_it_comes(
    reader: KinesisStreamReader,
) -> None:
    foreign = reader.initialOffset() | {"v": 3}
    with pytest.raises(
        IncompatibleStateError, match="found offset version 3; expected version 1 or"
    ):
        reader.latestOffset(foreign, ReadAllAvailable())
    with pytest.raises(
        IncompatibleStateError, match="found offset version 3; expected version 1 or"
    ):
        reader.partitions(reader.initialOffset(), foreign)


def test_the_checkpoint_of_another_stream_is_refused_at_a_replay_too(
    service: Service, reader: KinesisStreamReader
) -> None:
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    other = KinesisStreamReader(OPTIONS | {"streamName": "clicks"})
    with pytest.raises(IncompatibleStateError, match="option streamName"):
        other.partitions(start, end)


def test_no_offset_and_no_partition_shows_a_secret(
    service: Service, reader: KinesisStreamReader
) -> None:
    service.put(5)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    shown = json.dumps(end) + repr(reader.partitions(start, end)) + repr(reader)
    for name in ("awsAccessKeyId", "awsSecretAccessKey"):
        assert OPTIONS[name] not in shown


# --- Limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadMaxBytes(256 << 20)),
        ({"maxBytesPerShard": "0"}, ReadMaxBytes((1 << 63) - 1)),
        ({"maxRecordsPerTrigger": "7"}, ReadMaxRows(7)),
        ({"maxBytesPerTrigger": "1000"}, ReadMaxBytes(1000)),
        ({"maxRecordsPerTrigger": "7", "maxBytesPerTrigger": "1000"}, ReadMaxRows(7)),
    ],
)
def test_the_default_limit_is_the_options(options: dict[str, str], limit: ReadLimit) -> None:
    assert KinesisStreamReader(OPTIONS | options).getDefaultReadLimit() == limit


@pytest.mark.parametrize(
    ("limit", "count"),
    [(ReadMaxRows(10), 5), (ReadMaxBytes(1), 5), (ReadAllAvailable(), 50)],
)
def test_both_options_hold_whichever_limit_spark_passes(
    service: Service, limit: ReadLimit, count: int
) -> None:
    """Trigger.Once wants all there is, and says so."""
    service.put(50)
    reader = KinesisStreamReader(
        OPTIONS | {"maxRecordsPerTrigger": "10", "maxBytesPerTrigger": "100"}
    )
    start = reader.initialOffset()
    records = 0
    for _ in range(2):  # the first look at a shard finds out how large its records are
        end = reader.latestOffset(start, limit)
        records = len(read(reader, start, end)) or records
        start = end
        service.clock.advance(10_000)
    reader.stop()
    assert records == count


# --- The rest -------------------------------------------------------------------------------------


def test_it_stops_at_the_latest_record_with_available_now(
    service: Service, reader: KinesisStreamReader
) -> None:
    put = service.put(20)
    reader.prepareForTriggerAvailableNow()
    service.put(20)
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(start, limit)
    assert sorted(row["data"] for row in read(reader, start, end)) == sorted(put)
    assert reader.latestOffset(end, limit) is end


@pytest.mark.parametrize("changes", [{}, {"maxBytesPerShard": "0"}, {"maxRecordsPerTrigger": "7"}])
def test_one_batch_of_trigger_once_has_all_records(
    service: Service, changes: dict[str, str]
) -> None:
    """Also where another batch would end earlier: at one instant, three seconds before the latest
    record of a busy shard, and without a shard whose calls are throttled."""
    put: list[bytes] = []
    for _ in range(100):
        put += service.put(10)
        service.clock.advance(1000)
    service.state.faults.add(Throttle(), operation="GetRecords", shard=shard_id(0), count=1)
    reader = KinesisStreamReader(OPTIONS | changes)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    rows = read(reader, start, end)
    reader.stop()
    assert sorted(row["data"] for row in rows) == sorted(put)


def test_lag_stands_in_the_progress(service: Service) -> None:
    service.put(50)
    service.clock.advance(3000)
    limited = KinesisStreamReader(OPTIONS | {"maxRecordsPerTrigger": "2"})
    limited.latestOffset(limited.initialOffset(), ReadMaxRows(2))
    report = limited.reportLatestOffset()
    limited.stop()
    assert report == {
        "orders": {
            "millisBehindLatest": {shard_id(0): 3000, shard_id(1): 3000},
            "maxMillisBehindLatest": 3000,
            "sumMillisBehindLatest": 6000,
            "retentionMillis": 86_400_000,
            "shards": {"open": 2, "closed": 0, "waiting": 0, "ended": 0},
            "counters": {"retries": 0, "throttles": 0, "reshards": 0, "dataLossWarnings": 0},
            "alignment": {"spreadMillis": 0, "leftBehind": 0},
        }
    }
    assert json.loads(json.dumps(report)) == report


def test_stopping_ends_the_drivers_threads(service: Service) -> None:
    service.put(5)
    threads = set(threading.enumerate())
    reader = KinesisStreamReader(OPTIONS)
    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert set(threading.enumerate()) - threads
    reader.stop()
    assert not set(threading.enumerate()) - threads


def test_only_its_own_partitions_are_read(reader: KinesisStreamReader) -> None:
    with pytest.raises(TypeError, match="a SlotPartition is expected, not a InputPartition"):
        reader.read(InputPartition(0))


def test_a_partition_is_one_slot(service: Service, reader: KinesisStreamReader) -> None:
    service.put(50)
    start = reader.initialOffset()
    partitions = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    slots = [partition.value for partition in partitions if isinstance(partition, SlotPartition)]
    assert [part.slot for part in slots] == [0, 1]
    assert len(partitions) == 2


def hash_ranges(partitions: Sequence[InputPartition]) -> dict[str, HashRange | None]:
    """What the partitions say of the hash keys of their shards."""
    found: dict[str, HashRange | None] = {}
    for partition in partitions:
        assert isinstance(partition, SlotPartition)
        found |= {shard.shard: shard.hash_range for shard in partition.value.shards}
    return found


def test_readers_get_the_hash_keys_of_planning(
    service: Service, reader: KinesisStreamReader
) -> None:
    service.put(20)
    start = through_spark(reader.initialOffset())
    end = through_spark(reader.latestOffset(start, ReadAllAvailable()))
    shards = service.state.stream("orders").shards(service.clock.now_ms())
    expected = {shard.shard_id: shard.hash_range for shard in shards}
    calls = service.state.calls.count()
    told = hash_ranges(reader.partitions(start, end))
    assert told == {
        shard: HashRange(first=known.first, last=known.last) for shard, known in expected.items()
    }
    assert service.state.calls.count() == calls
    replaying = KinesisStreamReader(OPTIONS)
    assert hash_ranges(replaying.partitions(start, end)) == dict.fromkeys(told)


def test_readers_do_not_get_hash_keys_of_a_stream_before_its_recreation(
    service: Service, reader: KinesisStreamReader
) -> None:
    service.put(20)
    start = through_spark(reader.initialOffset())
    end = through_spark(reader.latestOffset(start, ReadAllAvailable()))
    end["streams"]["orders"]["created"] -= 1
    assert set(hash_ranges(reader.partitions(start, end)).values()) == {None}


# --- Leases ---------------------------------------------------------------------------------------


class LeaseAgent:
    """An agent that holds whatever there is, at once, and remembers who asked."""

    def __init__(self) -> None:
        self.worker = WorkerId("")
        self.rows: dict[LeaseKey, Lease] = {}
        self.exchanges = 0
        self.restarts = 0
        self.closed = False

    def start(self, settings: AgentSettings) -> LeaseAgent:
        self.worker = settings.coordination.worker
        self.settings = settings
        return self

    def exchange(self, report: Report) -> Status:
        self.exchanges += 1
        self.rows |= {row.key: replace(row, owner=self.worker) for row in report.create}
        return Status(
            held=self.rows,
            rows=self.rows,
            asked_for=frozenset(),
            stale=frozenset(),
            outage_ms=0,
            released=False,
            problem=None,
        )

    def close(self) -> None:
        self.closed = True


LEASED = OPTIONS | {
    "applicationName": "orders-etl",
    "leaseTable": "orders-leases",
    "dynamodbEndpointUrl": "http://localhost:8000",
    "leaseTableReadWriteCapacity": "10/5",
    "leaseTableTags": "team=orders",
    "maxLeasesPerWorker": "7",
}


def test_the_first_use_on_the_driver_starts_the_agent_and_nothing_else_does(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents: list[LeaseAgent] = []

    def start(settings: AgentSettings) -> LeaseAgent:
        agents.append(LeaseAgent().start(settings))
        return agents[-1]

    monkeypatch.setattr(lease_worker, "start_agent", start)
    data = service.put(10)
    reader = KinesisStreamReader(LEASED | {"workerId": "anne"})
    begin = reader.initialOffset()
    copy = pickle.loads(pickle.dumps(reader))
    assert agents == []
    end = through_spark(reader.latestOffset(begin, ReadAllAvailable()))
    (agent,) = agents
    assert agent.exchanges > 0
    assert sorted(row["data"] for row in read(reader, begin, end)) == sorted(data)
    assert sorted(row["data"] for row in read(copy, begin, end)) == sorted(data)
    assert len(agents) == 1
    lag = reader.reportLatestOffset()
    assert lag is not None
    assert lag["orders"]["worker"] == "anne"
    assert lag["orders"]["leases"] == {"owners": {"anne": 2}, "free": 0}
    assert lag["orders"]["counters"]["agentRestarts"] == 0
    pickle.dumps(reader)
    reader.stop()
    assert agent.closed
    again = KinesisStreamReader(LEASED | {"workerId": "anne"})
    again.latestOffset(begin, ReadAllAvailable())
    other = again.reportLatestOffset()
    assert other is not None
    assert other["orders"]["drainToken"] != lag["orders"]["drainToken"]
    again.stop()

    settings = agent.settings
    assert settings.application == "orders-etl"
    assert settings.table == TableSettings(
        name="orders-leases", capacity=Capacity(read=10, write=5), tags=(("team", "orders"),)
    )
    assert settings.coordination.max_leases == 7
    assert settings.connection.endpoint_url == "http://localhost:8000"
    assert settings.connection.aws_access_key_id == OPTIONS["awsAccessKeyId"]
    assert OPTIONS["awsSecretAccessKey"] not in repr(settings)


def test_an_id_is_made_once_for_a_query(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = LeaseAgent()
    monkeypatch.setattr(lease_worker, "start_agent", agent.start)
    generator = "spark_ssp.checkpoint.worker_identity.HostAndQueryGenerator"
    reader = KinesisStreamReader(LEASED | {"processorIdGenerator": generator})
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    first = agent.worker
    assert ":orders:" in first
    reader.latestOffset(end, ReadAllAvailable())
    assert agent.worker == first
    reader.stop()


def test_a_generator_that_cannot_be_had_is_reported_at_the_first_use(service: Service) -> None:
    reader = KinesisStreamReader(LEASED | {"processorIdGenerator": "no_such.module.Ids"})
    with pytest.raises(InvalidOptionsError, match="processorIdGenerator"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
