"""`spark-ssp watch`: the page of a checkpoint, as a file and while the query runs."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from spark_ssp.checkpoint.leases.lease import Lease, Progress, ShardEnded, StartAtTrimHorizon
from spark_ssp.grouping.identifiers import ShardId, WorkerId
from spark_ssp.operations.commands.watch import with_owners
from spark_ssp.operations.snapshot import LeaseCounts, ShardSnapshot
from spark_ssp.testing.kinesis.state.faults import InternalFailure
from spark_ssp.testing.kinesis.state.stream import shard_id
from tests.architecture.layers import ROOT
from tests.contract.operations.conftest import Cloud, lease_row, of_stream
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.operations import histories
from tests.support.operations.command import Run, run
from tests.support.operations.reports import end_offset, kafka_end_offset
from tests.support.servers.kafka_broker import KafkaBroker

ONE_ATTEMPT = "retry.maxAttempts=1"
EARLIER = ROOT / "tests" / "golden" / "checkpoints"


def _write(
    checkpoint: Path,
    batch: int,
    shards: int,
    *,
    ended: tuple[int, ...] = (),
    positions: Sequence[str] = (),
    created_ms: int | None = None,
) -> None:
    end = end_offset(shards, ended=ended, positions=positions)
    if created_ms is not None:
        end["streams"]["orders"]["created"] = created_ms
    _write_offset(checkpoint, batch, end)


def _write_offset(checkpoint: Path, batch: int, end: Mapping[str, Any]) -> None:
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "metadata").write_text('{"id": "query-1"}')
    metadata = {"batchTimestampMs": 1_795_464_000_000 + 5_000 * batch}
    (checkpoint / "offsets" / str(batch)).write_text(
        f"v1\n{json.dumps(metadata)}\n{json.dumps(end)}"
    )


def test_the_page_of_a_checkpoint_as_a_file(tmp_path: Path) -> None:
    checkpoint, file = tmp_path / "checkpoint", tmp_path / "page.html"
    for batch in range(5):
        _write(checkpoint, batch, 2 if batch < 3 else 4, ended=(0,) if batch == 3 else ())
    found = run("watch", str(checkpoint), "--once", str(file), now_ms=1_795_464_025_000)
    assert (found.code, found.out) == (0, "")
    newest = run("watch", str(checkpoint), "--json").document()
    assert (newest["batchId"], newest["timeMs"]) == (4, 1_795_464_020_000)
    assert (newest["rows"], newest["sources"][0]["rows"]) == (None, None)  # not in a checkpoint
    assert len(newest["sources"][0]["streams"][0]["shards"]) == 4
    page = file.read_text(encoding="utf-8")
    assert page.count('class="lane"') == 4
    assert page.count("shardId-000000000003; slot 3; open; lag unknown") == 1
    assert "batch 4, query query-1" in page
    assert "rows per batch" not in page
    assert "last batch" not in page
    assert "<script" not in page


@pytest.mark.parametrize("source", ["kinesis", "kafka"])
def test_checkpoints_of_the_previous_version(source: str, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert run("watch", str(EARLIER / source), "--once", str(file)).code == 0
    assert file.read_text(encoding="utf-8").count('class="lane"') >= 1


def test_the_page_follows_the_query_until_it_is_stopped(tmp_path: Path) -> None:
    _write(tmp_path, 0, 2)
    pages: list[str] = []

    def sleep(_: float) -> None:
        pages.append(_get(port))
        if len(pages) == 3:
            raise KeyboardInterrupt
        _write(tmp_path, len(pages), 2 + len(pages))

    with _listening() as port:
        pass  # free again
    found = run("watch", str(tmp_path), "--port", str(port), sleep=sleep)
    assert found.code == 130
    assert f"serving http://127.0.0.1:{port}/ until Ctrl-C" in found.err
    assert [f"batch {n}, query" in page for n, page in enumerate(pages)] == [True] * 3
    assert ["4 shards" in page for page in pages] == [False, False, True]


def test_the_lag_of_shards_is_measured_again_while_no_batch_follows(
    cloud: Cloud, tmp_path: Path
) -> None:
    cloud.client.create_stream(StreamName="orders", ShardCount=2)
    cloud.clock.advance(60_000)
    first, second = (cloud.put("orders", "key", hash_key) for hash_key in (0, 1 << 127))
    cloud.put("orders", "key", 0)
    _write(tmp_path, 0, 2, positions=(first, second), created_ms=cloud.created_ms("orders"))
    pages: list[str] = []

    def sleep(_: float) -> None:
        pages.append(_get(port))
        cloud.clock.advance(60_000)
        if len(pages) == 2:
            raise KeyboardInterrupt

    cloud.clock.advance(90_000)
    with _listening() as port:
        pass  # free again
    arguments = ("watch", str(tmp_path), "--lag", "--port", str(port))
    assert cloud.run(*arguments, sleep=sleep).code == 130
    assert ["lag 1 min 30 s" in page for page in pages] == [True, False]
    assert ["lag 2 min 30 s" in page for page in pages] == [False, True]
    assert all("shardId-000000000001; slot 1; open; lag 0 ms" in page for page in pages)


@pytest.mark.parametrize("is_recreated", [False, True])
def test_a_stream_that_is_gone_has_no_lag(cloud: Cloud, tmp_path: Path, is_recreated: bool) -> None:
    cloud.client.create_stream(StreamName="orders", ShardCount=1)
    cloud.clock.advance(60_000)
    position = cloud.put("orders", "key", 0)
    _write(tmp_path, 0, 1, positions=(position,), created_ms=cloud.created_ms("orders"))
    arguments = ("watch", str(tmp_path), "--lag", "--json")
    assert _max_lag(cloud.run(*arguments)) == 0
    cloud.client.delete_stream(StreamName="orders")
    cloud.clock.advance(60_000)
    if is_recreated:
        cloud.client.create_stream(StreamName="orders", ShardCount=1)
        cloud.clock.advance(60_000)
    assert _max_lag(cloud.run(*arguments)) is None


def _max_lag(found: Run) -> int | None:
    assert found.code == 0, found.err
    (source,) = found.document()["sources"]
    (stream,) = source["streams"]
    assert stream["maxLag"] == stream["shards"][0]["lag"]
    lag: int | None = stream["maxLag"]
    return lag


def test_the_page_outlives_a_service_that_is_unavailable(cloud: Cloud, tmp_path: Path) -> None:
    """A batch that could not be measured is read again."""
    cloud.client.create_stream(StreamName="orders", ShardCount=1)
    cloud.clock.advance(60_000)
    position = cloud.put("orders", "key", 0)
    _write(tmp_path, 0, 1, positions=(position,), created_ms=cloud.created_ms("orders"))
    pages: list[str] = []

    def sleep(_: float) -> None:
        pages.append(_get(port))
        cloud.kinesis.faults.clear()
        if len(pages) == 1:
            _write(tmp_path, 1, 1, positions=(position,), created_ms=cloud.created_ms("orders"))
            cloud.kinesis.faults.add(InternalFailure(), operation="GetShardIterator", count=None)
        if len(pages) == 3:
            raise KeyboardInterrupt

    with _listening() as port:
        pass  # free again
    arguments = ("watch", str(tmp_path), "--lag", "--port", str(port), "--option", ONE_ATTEMPT)
    found = cloud.run(*arguments, sleep=sleep)
    assert found.code == 130
    assert found.err.count("[service-unavailable]") == 1
    assert ["batch 1, query" in page for page in pages] == [False, False, True]


def test_the_lag_of_partitions(
    kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    topic = topics.create(2)
    topics.put(topic, [Record(value=b"v", partition=0)] * 5)
    _write_offset(tmp_path, 0, kafka_end_offset(topic, 2, 0))
    arguments = ["watch", str(tmp_path), "--lag", "--json"]
    servers = f"--bootstrap-servers={kafka_broker.bootstrap_servers}"
    (source,) = run(*arguments, servers).document()["sources"]
    assert [shard["lag"] for shard in source["streams"][0]["shards"]] == [5, 0]
    topics.delete(topic)
    topics.put(topics.create(2, name=topic), [Record(value=b"v", partition=0)] * 5)
    end = kafka_end_offset(topic, 2, 0)
    end["topics"][topic]["id"] = "AAAAAAAAAAAAAAAAAAAAAA"
    _write_offset(tmp_path, 1, end)
    (source,) = run(*arguments, servers).document()["sources"]
    assert [shard["lag"] for shard in source["streams"][0]["shards"]] == [None, None]
    without = run(*arguments)
    assert without.code == 2
    assert "kafka.bootstrap.servers" in without.err


def test_owners_of_leases_are_counted_and_given_to_their_shards() -> None:
    rows = [
        lease("shardId-000000000000", "anne"),
        lease("shardId-000000000001", "bert"),
        lease("shardId-000000000002", None),
        lease("shardId-000000000009", "bert", ShardEnded()),
    ]
    snapshot = with_owners(histories.snapshot(0, _shards(3)), rows)
    (stream,) = snapshot.sources[0].streams
    assert [shard.owner for shard in stream.shards] == ["anne", "bert", None]
    assert stream.leases == LeaseCounts(by_owner={"anne": 1, "bert": 1}, free=1)


def test_owners_of_a_namesake_are_none_of_the_stream(cloud: Cloud, tmp_path: Path) -> None:
    """One that was created at another time, in this account or in another one."""
    created = 1_795_400_000
    _write(tmp_path, 0, 2, created_ms=1_000 * created + 300)
    owners = {
        f"111122223333:orders:{created}": "anne",
        f"111122223333:orders:{created - 90}": "bert",
        f"999999999999:orders:{created + 90}": "carl",
    }
    rows = (
        of_stream(stream, lease_row(0, "TRIM_HORIZON", leaseOwner={"S": owner}))
        for stream, owner in owners.items()
    )
    cloud.table("etl", list(rows))
    found = cloud.run("watch", str(tmp_path), "--application=etl", "--json").document()
    (stream,) = found["sources"][0]["streams"]
    assert [shard["owner"] for shard in stream["shards"]] == ["anne", None]
    assert stream["leases"]["byOwner"] == {"anne": 1}


def lease(shard: str, owner: str | None, progress: Progress | None = None) -> Lease:
    return Lease(
        shard=ShardId(shard),
        counter=1,
        progress=progress or StartAtTrimHorizon(),
        owner=None if owner is None else WorkerId(owner),
    )


def _shards(count: int) -> dict[str, ShardSnapshot]:
    return {shard_id(n): histories.shard(n, n) for n in range(count)}


def test_a_folder_without_a_batch_is_an_error(tmp_path: Path) -> None:
    found = run("watch", str(tmp_path), "--once", str(tmp_path / "page.html"))
    assert found.code == 2
    assert "found no planned batch" in found.err
    assert not (tmp_path / "page.html").exists()


def test_an_address_in_use_is_an_error(tmp_path: Path) -> None:
    _write(tmp_path, 0, 2)
    with _listening() as port:
        found = run("watch", str(tmp_path), "--port", str(port))
    assert found.code == 2
    assert "cannot be bound" in found.err


@contextmanager
def _listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def _get(port: int) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read().decode()
    finally:
        connection.close()
