"""`spark-ssp status` on checkpoints of queries of a stream, with and without leases; it only
reads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from spark_ssp.checkpoint.leases.dynamodb_calls import DynamoDbCalls
from spark_ssp.checkpoint.leases.dynamodb_store import DynamoDbLeaseStore
from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    Position,
    SequenceNumber,
    ShardEnd,
    TrimHorizon,
)
from spark_ssp.operations.inspection.spark_checkpoint import MAX_FOLDERS
from spark_ssp.testing.kinesis import EmbeddedKinesis, ManualClock
from spark_ssp.testing.kinesis.state.faults import AccessDenied, InternalFailure
from tests.contract.operations.conftest import KEYS, Cloud, lease_row, open_cloud
from tests.support.operations.checkpoints import WrittenCheckpoint, kinesis_end
from tests.support.operations.command import run

MINUTE = 60_000
HOUR = 60 * MINUTE
WORKER = "7c6f1a52-8f0b-4a2e-9a59-0b1de1c1f1c4"


@pytest.fixture
def cloud(
    request: pytest.FixtureRequest, services: tuple[EmbeddedKinesis, ManualClock]
) -> Iterator[Cloud]:
    """Services in a region in which no other test has tables, or in the given one."""
    yield from open_cloud(services, getattr(request, "param", "eu-north-1"))


class Orders:
    """A query of the stream `orders`, which has two shards and a record in each."""

    def __init__(self, cloud: Cloud, path: Path) -> None:
        self.cloud = cloud
        self.checkpoint = WrittenCheckpoint(path=path)
        cloud.client.create_stream(StreamName="orders", ShardCount=2)
        cloud.clock.advance(MINUTE)
        self.last = {n: self.put(n) for n in (0, 1)}

    def put(self, shard: int) -> Position:
        """Put a record, and return the position after it."""
        number = self.cloud.put("orders", "key", shard << 127)
        return AfterRecord(sequence_number=SequenceNumber(number))

    def end(self, positions: dict[int, Position], **more: Any) -> dict[str, Any]:
        found = self.cloud.client.describe_stream_summary(StreamName="orders")
        created = found["StreamDescriptionSummary"]["StreamCreationTimestamp"]
        return kinesis_end(positions, round(created.timestamp() * 1000), **more)

    def run_batch(self, batch: int, positions: dict[int, Position], **more: Any) -> None:
        now = self.cloud.clock.now_ms()
        self.checkpoint.plan(batch, self.end(positions, **more), now - 2_000)
        self.checkpoint.commit(batch, now)

    def status(self, *arguments: str, **more: Any) -> Any:
        """Return the exit code, and the answer."""
        found = self.cloud.run("status", str(self.checkpoint.path), "--json", *arguments, **more)
        assert found.out, found.err
        (query,) = found.document()["queries"]
        return found.code, query


@pytest.fixture
def orders(cloud: Cloud, tmp_path: Path) -> Orders:
    return Orders(cloud, tmp_path / "checkpoint")


def _verdicts(query: Any) -> list[str]:
    return [finding["verdict"] for finding in query["findings"]]


def test_a_query_in_time(orders: Orders) -> None:
    orders.run_batch(0, orders.last)
    orders.cloud.clock.advance(5_000)
    code, query = orders.status()
    assert (code, query["verdict"], query["state"], query["findings"]) == (0, "OK", "waiting", [])
    assert (query["committedDelay"]["ms"], query["plannedDelay"]["ms"]) == (0, 0)
    assert (query["commitAgeMs"], query["triggerAgeMs"]) == (5_000, 7_000)
    assert query["process"] == "unknown"
    assert [part["reader"] for part in query["parts"]] == ["query", "query"]


def test_records_that_are_planned_and_not_committed_are_late(orders: Orders) -> None:
    """A sink that hangs: the driver has planned everything, so a lag after the plan is 0."""
    orders.run_batch(0, orders.last)
    newer = {n: orders.put(n) for n in (0, 1)}
    orders.checkpoint.plan(1, orders.end(newer), orders.cloud.clock.now_ms())
    orders.cloud.clock.advance(12 * MINUTE)
    code, query = orders.status()
    assert (code, query["verdict"], query["state"]) == (1, "BEHIND", "running")
    assert query["committedDelay"]["ms"] == pytest.approx(12 * MINUTE, abs=2_000)
    assert query["plannedDelay"]["ms"] == 0
    assert "sink" in query["findings"][0]["remedy"]

    orders.cloud.clock.advance(12 * MINUTE)
    code, query = orders.status()
    assert (code, query["state"], query["stuckIn"]) == (3, "stuck", ["tasks", "sink"])
    assert _verdicts(query) == ["STALLED", "BEHIND"]
    assert "or stopped; which of them is not known" in query["findings"][0]["reason"]
    assert orders.status("--stuck-after", "1h", "--max-delay", "1h")[0] == 0


def test_nothing_is_planned_while_records_wait(orders: Orders) -> None:
    orders.run_batch(0, orders.last)
    orders.cloud.clock.advance(2 * HOUR)
    assert orders.status()[0] == 0
    orders.put(1)
    orders.cloud.clock.advance(20 * MINUTE)
    code, query = orders.status()
    assert (code, query["state"], query["stuckIn"]) == (3, "stuck", ["planning"])
    late = [part["name"] for part in query["parts"] if part["committedDelay"]["ms"]]
    assert late == ["orders/shardId-000000000001"]


@pytest.mark.parametrize(("minutes", "code", "catches_up"), [(10, 1, True), (60, 1, False)])
def test_the_pace_of_the_last_batches(
    orders: Orders, minutes: int, code: int, catches_up: bool
) -> None:
    """The batch has read records of 30 minutes, in 10 minutes and in 60."""
    clock = orders.cloud.clock
    at = [orders.put(0)]
    for _ in range(4):
        clock.advance(30 * MINUTE)
        at.append(orders.put(0))
    orders.run_batch(0, {0: at[1], 1: orders.last[1]})
    clock.advance(minutes * MINUTE)
    orders.run_batch(1, {0: at[2], 1: orders.last[1]})
    found, query = orders.status()
    assert (found, query["catchesUp"]) == (code, catches_up)
    if catches_up:  # three times as fast: behind by 40 minutes, it needs 20
        assert query["untilCaughtUpMs"] == pytest.approx(20 * MINUTE, rel=0.01)
    else:
        assert "read 0.50 times as fast" in query["findings"][0]["reason"]


def test_a_delay_since_the_last_commit_says_nothing_about_the_pace(orders: Orders) -> None:
    """Nothing was written to the shard for long, so the batches have read nothing of it."""
    for batch in (0, 1):
        orders.run_batch(batch, orders.last)
        orders.cloud.clock.advance(HOUR)
    orders.checkpoint.plan(2, orders.end({**orders.last, 0: orders.put(0)}), _now(orders)())
    orders.cloud.clock.advance(12 * MINUTE)
    code, query = orders.status()
    assert (code, query["verdict"]) == (1, "BEHIND")
    assert "how fast it reads is not known" in query["findings"][0]["reason"]


def test_beyond_half_of_the_retention_a_query_that_stands_loses_records(orders: Orders) -> None:
    orders.run_batch(0, orders.last)
    orders.put(0)
    orders.cloud.clock.advance(11 * HOUR)
    assert orders.status()[1]["verdict"] == "STALLED"
    orders.cloud.clock.advance(2 * HOUR)
    code, query = orders.status()
    assert (code, query["verdict"]) == (5, "LOSING")
    assert query["untilExpiryMs"] == pytest.approx(11 * HOUR, abs=2_000)
    assert "raise the retention" in query["findings"][0]["remedy"]


def test_records_that_expired_behind_a_stopped_query(orders: Orders) -> None:
    """What is left is young: only the record that was read last tells that others are gone."""
    orders.run_batch(0, orders.last)
    orders.put(0)
    orders.cloud.clock.advance(23 * HOUR)
    assert not any(part["lost"] for part in orders.status()[1]["parts"])
    orders.cloud.clock.advance(2 * HOUR)
    orders.put(0)
    code, query = orders.status()
    assert (code, query["verdict"], query["parts"][0]["lost"]) == (5, "LOSING", True)
    assert query["committedDelay"]["ms"] < MINUTE
    assert "failOnDataLoss=false" in query["findings"][0]["remedy"]


def test_children_that_the_query_has_not_seen_count(orders: Orders) -> None:
    orders.cloud.split("orders", 0, 1 << 126)
    orders.run_batch(0, {0: ShardEnd(), 1: orders.last[1]})
    orders.cloud.put("orders", "key", 0)
    orders.cloud.clock.advance(12 * MINUTE)
    code, query = orders.status()
    assert code == 1
    readers = {part["name"][-1]: part["reader"] for part in query["parts"]}
    assert readers == {"1": "query", "2": "waiting", "3": "waiting"}


def test_an_expired_shard_and_another_stream(orders: Orders) -> None:
    orders.run_batch(0, {7: TrimHorizon(), **orders.last})
    code, query = orders.status()
    assert (code, query["verdict"]) == (5, "LOSING")
    assert "orders/shardId-000000000007" in query["findings"][0]["reason"]

    orders.cloud.client.delete_stream(StreamName="orders")
    orders.cloud.clock.advance(MINUTE)
    code, query = orders.status()
    assert (code, query["verdict"]) == (4, "FAILED")
    assert "stream orders was deleted" in query["findings"][0]["reason"]
    assert f"in region {orders.cloud.region} at" in query["findings"][0]["reason"]
    orders.cloud.client.create_stream(StreamName="orders", ShardCount=2)
    orders.cloud.clock.advance(MINUTE)
    code, query = orders.status()
    assert (code, query["committedDelay"]["ms"]) == (4, None)
    assert "deleted and created again" in query["findings"][0]["reason"]


@pytest.mark.parametrize("is_recreated", [False, True])
def test_a_stream_that_is_not_there_may_be_elsewhere(orders: Orders, is_recreated: bool) -> None:
    """AWS's configuration names a region, and it may not be that of a query that commits."""
    orders.run_batch(0, orders.last)
    orders.cloud.client.delete_stream(StreamName="orders")
    orders.cloud.clock.advance(MINUTE)
    if is_recreated:
        orders.cloud.client.create_stream(StreamName="orders", ShardCount=2)
        orders.cloud.clock.advance(MINUTE)
    for code, verdict in ((6, "UNKNOWN"), (4, "FAILED")):
        found = run(
            "status",
            str(orders.checkpoint.path),
            "--json",
            f"--endpoint-url={orders.cloud.kinesis.endpoint_url}",
            environment=KEYS | {"AWS_REGION": "us-east-1"},
            now_ms=orders.cloud.clock.now_ms(),
        )
        (query,) = found.document()["queries"]
        (finding,) = query["findings"][:1]
        assert (found.code, finding["verdict"]) == (code, verdict)
        assert "us-east-1" in finding["reason"]
        assert finding["remedy"].startswith("check --region, and the account")
        orders.cloud.clock.advance(HOUR)


@pytest.mark.parametrize("cloud", ["us-east-1"], indirect=True)  # that of the ARN
@pytest.mark.parametrize(("account", "verdict"), [(None, "BEHIND"), ("999999999999", "FAILED")])
def test_a_stream_of_another_account_is_read_by_its_arn(
    orders: Orders,
    tmp_path: Path,
    asked_arns: set[str | None],
    account: str | None,
    verdict: str,
) -> None:
    """Offsets and leases only have its name; the options of the query have the ARN."""
    orders.run_batch(0, {n: TrimHorizon() for n in (0, 1)})
    orders.cloud.table("etl", [_lease(n, "TRIM_HORIZON") for n in (0, 1)])
    orders.cloud.clock.advance(12 * MINUTE)
    arn = _arn(orders)
    named = arn if account is None else arn.replace(arn.split(":")[4], account)
    options = tmp_path / "job.json"
    options.write_text(json.dumps({"streamARN": named}))
    found = orders.cloud.run(
        "status",
        str(orders.checkpoint.path),
        "--applications",
        f"--options={options}",
        "--json",
        sleep=orders.cloud.renew("etl", 0, 1),
        now_ms=_now(orders),
    )
    (query,), applications = found.document()["queries"], found.document()["applications"]
    (etl,) = [one for one in applications if one["application"] == "etl"]
    assert (query["verdict"], asked_arns) == (verdict, {named})
    assert etl["verdict"] == ("BEHIND" if account is None else "UNKNOWN")


def test_a_service_that_does_not_answer_is_unknown_and_not_well(orders: Orders) -> None:
    orders.run_batch(0, orders.last)
    orders.cloud.kinesis.faults.add(InternalFailure(), operation="GetShardIterator", count=None)
    code, query = orders.status("--option", "retry.maxAttempts=1")
    orders.cloud.kinesis.faults.clear()
    assert (code, query["verdict"], query["committedDelay"]["ms"]) == (6, "UNKNOWN", None)
    orders.checkpoint.plan(1, orders.end(orders.last), orders.cloud.clock.now_ms())
    orders.cloud.clock.advance(HOUR)
    orders.cloud.kinesis.faults.add(InternalFailure(), operation="GetShardIterator", count=None)
    code, query = orders.status("--option", "retry.maxAttempts=1")
    orders.cloud.kinesis.faults.clear()
    assert (code, _verdicts(query)[:2]) == (3, ["STALLED", "UNKNOWN"])


@pytest.mark.parametrize("what", ["stream", "table", "shard"])
def test_what_cannot_be_read_hides_nothing_else(orders: Orders, what: str) -> None:
    """The stream `zeta` was deleted and created again; it comes after the one with the fault."""
    orders.cloud.client.create_stream(StreamName="zeta", ShardCount=1)
    orders.cloud.clock.advance(MINUTE)
    leases = "deleted" if what == "table" else None
    orders.run_batch(0, orders.last, leases=leases, others={"zeta": 5})
    faults = orders.cloud.kinesis.faults
    first = "shardId-000000000000"
    if what == "stream":
        faults.add(AccessDenied(), operation="DescribeStreamSummary", stream="orders", count=None)
    elif what == "shard":
        faults.add(InternalFailure(), operation="GetShardIterator", shard=first, count=None)
    arguments = ("--option", "retry.maxAttempts=1")
    code, query = orders.status(*arguments, sleep=lambda _: None)
    subject = {"stream": "stream orders", "table": "lease table deleted", "shard": first}[what]
    failed, *unknown = query["findings"]
    assert (code, failed["verdict"], "stream zeta" in failed["reason"]) == (4, "FAILED", True)
    assert sum(f"{subject}: found" in finding["reason"] for finding in unknown) == 1
    delays = [part["committedDelay"]["ms"] for part in query["parts"]]
    assert delays == ([None, 0] if what == "shard" else [])

    if what == "shard":
        orders.put(1)
        orders.cloud.clock.advance(13 * HOUR)
        assert orders.status(*arguments)[0] == 5
    faults.clear()


def test_a_query_without_a_batch_is_unknown(orders: Orders) -> None:
    orders.checkpoint.path.mkdir()
    (orders.checkpoint.path / "metadata").write_text('{"id": "query-1"}')
    assert orders.status()[0] == 6


# --- Leases ---------------------------------------------------------------------------------------


def _lease(shard: int, checkpoint: str, owner: str | None = WORKER) -> dict[str, Any]:
    row = lease_row(shard, checkpoint, sspStream={"S": "orders"})
    return row if owner is None else row | {"leaseOwner": {"S": owner}}


def _number(position: Position) -> str:
    assert isinstance(position, AfterRecord)
    return position.sequence_number


def _shared(orders: Orders, *rows: dict[str, Any]) -> None:
    """The query has shard 0, by the lease table `etl`."""
    orders.cloud.table("etl", list(rows))
    orders.run_batch(0, {0: orders.last[0]}, leases="etl")


def _now(orders: Orders) -> Any:
    return orders.cloud.clock.now_ms


def test_every_shard_of_the_application_is_measured(orders: Orders) -> None:
    _shared(orders, *(_lease(n, _number(orders.last[n])) for n in (0, 1)))
    pause = orders.cloud.renew("etl", 0, 1)
    code, query = orders.status(sleep=pause, now_ms=_now(orders))
    assert (code, query["verdict"]) == (0, "OK")
    assert [part["reader"] for part in query["parts"]] == ["renewed", "renewed"]

    orders.put(1)
    orders.cloud.clock.advance(12 * MINUTE)
    code, query = orders.status(sleep=pause, now_ms=_now(orders))
    assert (code, query["verdict"]) == (1, "BEHIND")
    assert "orders/shardId-000000000001" in query["findings"][0]["reason"]


def test_a_query_that_gets_another_table_meanwhile_is_unknown(orders: Orders) -> None:
    _shared(orders, *(_lease(n, _number(orders.last[n])) for n in (0, 1)))
    renew = orders.cloud.renew("etl", 0, 1)

    def pause(seconds: float) -> None:
        renew(seconds)
        orders.run_batch(1, orders.last, leases="new")

    code, query = orders.status(sleep=pause, now_ms=_now(orders))
    assert (code, query["committedBatch"]) == (6, 1)
    assert "lease table new" in query["findings"][0]["reason"]


def test_a_lease_that_is_ahead_of_the_checkpoint_counts(orders: Orders) -> None:
    """Another worker has taken the shard, and read on."""
    after = {n: orders.put(n) for n in (0, 1)}
    orders.cloud.table("etl", [_lease(n, _number(after[n])) for n in (0, 1)])
    orders.run_batch(0, {0: orders.last[0]}, leases="etl")
    orders.cloud.clock.advance(12 * MINUTE)
    pause = orders.cloud.renew("etl", 0, 1)
    assert orders.status(sleep=pause, now_ms=_now(orders))[0] == 0


def test_an_owner_that_was_not_observed_for_long_is_unknown(orders: Orders) -> None:
    _shared(orders, *(_lease(n, _number(orders.last[n])) for n in (0, 1)))
    code, query = orders.status(sleep=lambda _: None, monotonic=lambda: 0.0)
    assert (code, query["verdict"], query["notRead"]) == (6, "UNKNOWN", {})
    assert [part["reader"] for part in query["parts"]] == ["unknown", "unknown"]


def test_a_lease_of_a_shard_that_expired_before_its_end_was_read(orders: Orders) -> None:
    """The stream no longer lists the shard: only its lease shows that records are lost."""
    number = _number(orders.last[0])
    rows = [_lease(n, _number(orders.last[n])) for n in (0, 1)]
    _shared(orders, *rows, _lease(7, number), _lease(8, "SHARD_END", None))
    code, query = orders.status(sleep=orders.cloud.renew("etl", 0, 1), now_ms=_now(orders))
    assert (code, query["verdict"]) == (5, "LOSING")
    assert [part["name"][-1] for part in query["parts"] if part["lost"]] == ["7"]
    (reason, *_) = [finding["reason"] for finding in query["findings"]]
    assert "shardId-000000000007" in reason


def test_a_lease_table_that_is_gone_is_unknown(orders: Orders) -> None:
    orders.run_batch(0, orders.last, leases="deleted")
    code, query = orders.status(sleep=lambda _: None)
    assert (code, query["verdict"]) == (6, "UNKNOWN")
    assert "lease table deleted" in query["findings"][0]["reason"]


@pytest.mark.parametrize(
    ("row", "reader"),
    [
        ("dead", "stale"),
        ("free", "free"),
        ("none", "no lease"),
        ("malformed", "malformed lease"),
    ],
)
def test_a_shard_that_nobody_reads_has_a_reason(orders: Orders, row: str, reader: str) -> None:
    """The lag is 0: nothing was written since."""
    number = _number(orders.last[1])
    rows = {
        "dead": [_lease(1, number, "a worker that has died")],
        "free": [_lease(1, number, None)],
        "none": [],
        "malformed": [{"leaseKey": {"S": "shardId-000000000001"}}],
    }
    _shared(orders, _lease(0, _number(orders.last[0])), *rows[row])
    code, query = orders.status(sleep=orders.cloud.renew("etl", 0), now_ms=_now(orders))
    assert (code, query["verdict"]) == (3, "STALLED")
    assert query["notRead"] == {reader: ["orders/shardId-000000000001"]}


@pytest.mark.parametrize("row", ["released", "deleted"])
def test_a_lease_may_have_no_owner_for_a_moment(orders: Orders, row: str) -> None:
    """As in a handoff: it had one at the first reading."""
    _shared(orders, *(_lease(n, _number(orders.last[n])) for n in (0, 1)))
    renewed = orders.cloud.renew("etl", 0)

    def pause(seconds: float) -> None:
        renewed(seconds)
        key = {"leaseKey": {"S": "shardId-000000000001"}}
        if row == "deleted":
            orders.cloud.dynamodb.delete_item(TableName="etl", Key=key)
        else:
            item: Any = _lease(1, _number(orders.last[1]), None)
            orders.cloud.dynamodb.put_item(TableName="etl", Item=item)

    code, query = orders.status(sleep=pause, now_ms=_now(orders))
    assert (code, query["verdict"]) == (0, "OK")
    assert [part["reader"] for part in query["parts"]] == ["renewed", "waiting"]
    code, query = orders.status(sleep=renewed, now_ms=_now(orders))
    assert (code, query["verdict"]) == (3, "STALLED")


def test_the_wait_is_longer_than_the_failover_time(orders: Orders) -> None:
    _shared(orders, *(_lease(n, _number(orders.last[n])) for n in (0, 1)))
    arguments = ("status", str(orders.checkpoint.path), "--wait", "5s")
    found = orders.cloud.run(*arguments)
    assert (found.code, found.out) == (2, "")
    assert "--failover" in found.err
    quick = orders.cloud.renew("etl", 0)
    code, query = orders.status("--failover=4m", "--wait=5m", sleep=quick, now_ms=_now(orders))
    assert (code, query["notRead"]) == (3, {"stale": ["orders/shardId-000000000001"]})


def test_the_later_position_of_checkpoint_and_lease_counts(orders: Orders) -> None:
    before, after = orders.last[0], orders.put(0)
    orders.cloud.table("etl", [_lease(n, _number(orders.last[n])) for n in (0, 1)])
    pause = orders.cloud.renew("etl", 0, 1)
    for batch, position, code in ((0, before, 1), (1, after, 0)):
        orders.run_batch(batch, {0: position}, leases="etl")
        orders.cloud.clock.advance(12 * MINUTE)
        assert orders.status(sleep=pause, now_ms=_now(orders))[0] == code


# --- Several checkpoints, output ------------------------------------------------------------------


def test_a_damaged_checkpoint_is_a_verdict_among_others(orders: Orders, tmp_path: Path) -> None:
    orders.run_batch(0, orders.last)
    torn = WrittenCheckpoint(path=tmp_path / "torn")
    torn.plan(0, orders.end(orders.last), orders.cloud.clock.now_ms())
    torn.commit(0, orders.cloud.clock.now_ms())
    (torn.path / "offsets" / "1").write_text("v1\n", encoding="utf-8")
    found = orders.cloud.run("status", "--json", str(torn.path), str(orders.checkpoint.path))
    damaged, well = found.document()["queries"]
    assert (found.code, damaged["verdict"], well["verdict"]) == (4, "FAILED", "OK")
    assert "offsets/1" in damaged["findings"][0]["remedy"]


def test_the_gravest_of_several_queries_is_the_exit_code(orders: Orders, tmp_path: Path) -> None:
    orders.run_batch(0, orders.last)
    slow = WrittenCheckpoint(path=tmp_path / "slow")
    slow.plan(0, orders.end({0: TrimHorizon(), 1: TrimHorizon()}), orders.cloud.clock.now_ms())
    slow.commit(0, orders.cloud.clock.now_ms())
    orders.cloud.clock.advance(12 * MINUTE)
    paths = (str(orders.checkpoint.path), str(slow.path))
    found = orders.cloud.run("status", *paths)
    assert found.code == 1
    head, first, second, *rest = found.out.splitlines()
    assert head.split()[:4] == ["VERDICT", "CHECKPOINT", "STATE", "DELAY"]
    assert (first.split()[0], second.split()[0]) == ("OK", "BEHIND")
    assert rest[1].startswith(f"{slow.path}: BEHIND: orders/shardId-00000000000")
    assert rest[2].startswith("  -> ")
    queries = orders.cloud.run("status", *paths, "--json").document()["queries"]
    assert [query["verdict"] for query in queries] == ["OK", "BEHIND"]
    narrow = orders.cloud.run("status", *paths, columns=80)
    assert max(map(len, narrow.out.splitlines())) <= 80


def test_only_reads(orders: Orders) -> None:
    _shared(orders, *(_lease(n, _number(orders.last[n])) for n in (0, 1)))
    files = sorted(path.read_text() for path in orders.checkpoint.path.rglob("*") if path.is_file())
    items = orders.cloud.dynamodb.scan(TableName="etl")["Items"]
    orders.cloud.kinesis.calls.reset()
    advance = orders.cloud.clock.advance
    orders.status(sleep=lambda seconds: advance(round(seconds * 1000)), now_ms=_now(orders))
    assert orders.cloud.kinesis.calls.by_operation().keys() == {
        "DescribeStreamSummary",
        "ListShards",
        "GetShardIterator",
        "GetRecords",
    }
    assert orders.cloud.dynamodb.scan(TableName="etl")["Items"] == items
    assert files == sorted(
        path.read_text() for path in orders.checkpoint.path.rglob("*") if path.is_file()
    )


def test_neither_credentials_nor_records_are_shown(orders: Orders) -> None:
    orders.run_batch(0, orders.last)
    orders.cloud.put("orders", "secret-key", 0, b"secret-data")
    orders.cloud.clock.advance(HOUR)
    found = orders.cloud.run("status", str(orders.checkpoint.path), "--json")
    assert "secret" not in json.dumps(found.document()) + found.err


# --- All that can be seen -------------------------------------------------------------------------


def test_the_checkpoints_in_a_folder(orders: Orders, tmp_path: Path) -> None:
    """At any of three levels: of a job, of the stages of a pipeline. A table is none."""
    ends = orders.end(orders.last)
    for name in ("jobs/orders", "jobs/pipeline/totals", "jobs/a/b/c"):
        written = WrittenCheckpoint(path=tmp_path / name)
        written.plan(0, ends, orders.cloud.clock.now_ms())
        written.commit(0, orders.cloud.clock.now_ms())
    (tmp_path / "jobs" / "table" / "_delta_log").mkdir(parents=True)
    found = orders.cloud.run("status", "--json", str(tmp_path / "jobs"))
    locations = [query["location"] for query in found.document()["queries"]]
    assert locations == [
        str(tmp_path / "jobs" / name) for name in ("a/b/c", "orders", "pipeline/totals")
    ]
    assert found.code == 0
    uri = f"file://{tmp_path}/jobs"
    (first, *_) = orders.cloud.run("status", "--json", uri).document()["queries"]
    assert first["location"] == f"{uri}/a/b/c"

    none = orders.cloud.run("status", str(tmp_path / "jobs" / "table"))
    assert (none.code, none.out) == (2, "")


def test_one_folder_does_not_hide_the_others(orders: Orders, tmp_path: Path) -> None:
    """One that may not be read, tables with their partitions, links, and too many folders."""
    jobs = tmp_path / "jobs"
    now = orders.cloud.clock.now_ms()
    for name in ("offsets/orders", "a#b", "a"):
        written = WrittenCheckpoint(path=jobs / name)
        written.plan(0, orders.end(orders.last), now)
        written.commit(0, now)
    (jobs / "iceberg" / "metadata").mkdir(parents=True)
    (jobs / "model").mkdir()
    (jobs / "model" / "metadata").write_text("name: churn")
    (jobs / "loop").symlink_to(jobs)
    for number in range(MAX_FOLDERS):
        (jobs / "table" / f"day={number}").mkdir(parents=True)
    found = orders.cloud.run("status", "--json", str(jobs))
    assert [query["location"] for query in found.document()["queries"]] == [
        str(jobs / name) for name in ("a", "a#b", "offsets/orders")
    ]
    assert found.code == 0

    scandir = os.scandir

    def refused(path: Path) -> Any:
        if path.name == "a#b":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", refused)
        found = orders.cloud.run("status", "--json", str(jobs))
    verdicts = {query["location"]: query["verdict"] for query in found.document()["queries"]}
    assert (found.code, len(verdicts), verdicts[str(jobs / "a#b")]) == (6, 3, "UNKNOWN")

    for number in range(MAX_FOLDERS):
        (jobs / "more" / str(number)).mkdir(parents=True)
    found = orders.cloud.run("status", "--json", str(jobs))
    verdicts = {query["location"]: query["verdict"] for query in found.document()["queries"]}
    assert (found.code, verdicts[str(jobs)], verdicts[str(jobs / "a")]) == (6, "UNKNOWN", "OK")


def test_the_applications_of_the_region(orders: Orders) -> None:
    """Without a path: a query's application, those of KCL workers, and nothing else."""
    cloud = orders.cloud
    cloud.table("etl", [_lease(n, _number(orders.last[n])) for n in (0, 1)])
    cloud.table("customers", [{"id": {"S": "1"}}], key="id")
    dead = [_lease(0, _number(orders.last[0]), "dead"), _lease(1, _number(orders.last[1]), "dead")]
    cloud.table("kcl", [{k: v for k, v in row.items() if k != "sspStream"} for row in dead])
    cloud.table("kcl-WorkerMetricStats", [], key="wid")
    pause = cloud.renew("etl", 0, 1)
    found = cloud.run("status", "--applications", "--json", sleep=pause, now_ms=_now(orders))
    document = found.document()
    etl, kcl = document["applications"]
    assert (found.code, document["queries"], document["tablesNotDescribed"]) == (3, [], [])
    assert (etl["application"], etl["verdict"], etl["findings"]) == ("etl", "OK", [])
    assert (etl["streams"], etl["workers"], etl["shards"]) == (["orders"], 1, 2)
    assert [part["reader"] for part in etl["parts"]] == ["renewed", "renewed"]
    assert (kcl["application"], kcl["verdict"], kcl["streams"]) == ("kcl", "STALLED", [])
    assert kcl["notRead"] == {"stale": ["shardId-000000000000", "shardId-000000000001"]}
    assert "spark-ssp leases kcl --stream" in kcl["findings"][1]["remedy"]

    orders.put(1)
    cloud.clock.advance(12 * MINUTE)
    found = cloud.run("status", "--applications", sleep=pause, now_ms=_now(orders))
    head, first, second, *_ = found.out.splitlines()
    assert head.split()[:2] == ["VERDICT", "APPLICATION"]
    assert first.split()[:6] == ["BEHIND", "etl", "orders", "1", "2", "0"]
    assert second.split()[:7] == ["STALLED", "kcl", "not", "named", "0", "2", "2"]


def test_tables_that_may_not_be_described_are_named(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = orders.cloud
    cloud.table("etl", [_lease(n, _number(orders.last[n])) for n in (0, 1)])
    denied = set[str]()
    once = DynamoDbCalls.once

    def refusing(calls: DynamoDbCalls, operation: str, request: Mapping[str, Any]) -> Any:
        if operation in denied:
            error = {"Code": "AccessDeniedException", "Message": "not authorized"}
            raise ClientError({"Error": error}, operation)  # type: ignore[typeddict-item]
        return once(calls, operation, request)

    monkeypatch.setattr(DynamoDbCalls, "once", refusing)
    denied.add("DescribeTable")
    found, text = (
        cloud.run("status", "--applications", "--json"),
        cloud.run("status", "--applications"),
    )
    assert (found.code, found.document()["tablesNotDescribed"]) == (6, ["etl"])
    assert "etl" in text.out
    denied.add("ListTables")
    refused = cloud.run("status", "--applications")
    assert (refused.code, refused.out, "dynamodb:ListTables" in refused.err) == (2, "", True)


def test_an_application_whose_stream_is_gone_or_does_not_answer_is_unknown(orders: Orders) -> None:
    cloud = orders.cloud
    rows = [_lease(n, _number(orders.last[n])) for n in (0, 1)]
    cloud.table("etl", [*rows, {**_lease(2, "TRIM_HORIZON", None), "sspStream": {"S": ""}}])
    pause = cloud.renew("etl", 0, 1)
    arguments = ("status", "--applications", "--json", "--option", "retry.maxAttempts=1")

    def application() -> Any:
        found = cloud.run(*arguments, sleep=pause, now_ms=_now(orders))
        assert found.out, found.err
        (etl,) = found.document()["applications"]
        return etl

    # The name in the third row is not one of a stream: what it hides must not hide the others.
    etl = application()
    assert (etl["verdict"], sum("Delay" in str(part) for part in etl["parts"])) == ("STALLED", 3)
    cloud.dynamodb.delete_item(TableName="etl", Key={"leaseKey": {"S": "shardId-000000000002"}})
    for operation in ("ListShards", "GetShardIterator"):
        cloud.kinesis.faults.add(InternalFailure(), operation=operation, count=None)
        assert application()["verdict"] == "UNKNOWN"
        pause, renewing = orders.cloud.renew("etl", 0), pause
        # A shard without a reader is known to be so.
        etl = application()
        cloud.kinesis.faults.clear()
        assert (etl["verdict"], list(etl["notRead"])) == ("STALLED", ["stale"])
        pause = renewing
    cloud.client.delete_stream(StreamName="orders")
    cloud.clock.advance(MINUTE)
    etl = application()
    assert (etl["verdict"], etl["notRead"]) == ("UNKNOWN", {})
    assert "stream orders does not exist" in etl["findings"][0]["reason"]


def _of(created: int, account: str = "123456789012", shard: int = 0, **more: Any) -> dict[str, Any]:
    """A lease of an application that reads several streams."""
    row = _lease(shard, "TRIM_HORIZON", more.pop("owner", WORKER))
    del row["sspStream"]
    name, stream = row["leaseKey"]["S"], f"{account}:orders:{created}"
    names = {"leaseKey": f"{stream}:{name}", "streamName": stream, "shardId": name}
    return {**row, **{key: {"S": value} for key, value in names.items()}, **more}


def _arn(orders: Orders) -> str:
    found = orders.cloud.client.describe_stream_summary(StreamName="orders")
    return found["StreamDescriptionSummary"]["StreamARN"]


@pytest.mark.parametrize(
    ("more", "verdict", "reason"),
    [
        ([], "OK", None),
        (["namesake"], "UNKNOWN", "of another account"),
        (["recreated"], "UNKNOWN", "created again"),
        (["malformed"], "STALLED", "cannot be parsed"),
        (["unnamed"], "STALLED", "shardId-000000000007"),
    ],
)
def test_a_row_that_cannot_be_measured_is_named(
    orders: Orders, more: list[str], verdict: str, reason: str | None
) -> None:
    created = orders.cloud.created_ms("orders") // 1000
    account = _arn(orders).split(":")[4]
    rows = {
        "namesake": _of(created, "999999999999", owner=None),
        "recreated": _of(created - 1, account, owner=None),
        "malformed": {k: v for k, v in _of(1, account, 5).items() if k != "leaseCounter"},
        "unnamed": {k: v for k, v in _lease(7, "TRIM_HORIZON", None).items() if k != "sspStream"},
    }
    own = [_of(created, account, shard) for shard in (0, 1)]
    orders.cloud.table("etl", [*own, *(rows[name] for name in more)])

    arguments = ("status", "--applications", "--json", "--max-delay=1h")
    pause = orders.cloud.renew_keys("etl", [row["leaseKey"]["S"] for row in own])
    found = orders.cloud.run(*arguments, sleep=pause, now_ms=_now(orders))
    (etl,) = found.document()["applications"]
    assert etl["verdict"] == verdict, etl["findings"]
    assert reason is None or reason in str(etl["findings"])


@pytest.mark.parametrize(
    ("dead", "more", "not_read"),
    [
        ([0], ["namesake"], {"stale": ["orders/shardId-000000000000"]}),
        ([], ["recreated", "malformed"], {}),
    ],
)
def test_rows_of_a_namesake_are_not_those_of_a_query(
    orders: Orders, dead: list[int], more: list[str], not_read: dict[str, list[str]]
) -> None:
    """A query ignores them: they do not replace its own rows, and it does not read their shards."""
    created, account = orders.cloud.created_ms("orders") // 1000, _arn(orders).split(":")[4]
    malformed = _of(created - 1, account, 1)
    del malformed["leaseCounter"]
    rows = {
        "namesake": _of(created, "999999999999"),
        "recreated": _of(created - 1, account, 5, owner=None),
        "malformed": malformed,
    }
    own = [_of(created, account, shard) for shard in (0, 1)]
    orders.cloud.table("etl", [*own, *(rows[name] for name in more)])
    orders.run_batch(0, {0: orders.last[0]}, leases="etl")
    renewed = [row for n, row in enumerate(own) if n not in dead]
    renewed += [rows[name] for name in more if name == "namesake"]
    pause = orders.cloud.renew_keys("etl", [row["leaseKey"]["S"] for row in renewed])
    code, query = orders.status("--max-delay=1h", sleep=pause, now_ms=_now(orders))
    assert (code, query["notRead"]) == (3 if dead else 0, not_read)
    assert {part["name"][-1] for part in query["parts"]} == {"0", "1"}


def test_a_table_that_takes_long_makes_no_other_stale(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = orders.cloud
    for name in ("etl", "slow"):
        cloud.table(name, [_lease(n, _number(orders.last[n])) for n in (0, 1)])
    scan = DynamoDbLeaseStore.scan

    def late(store: DynamoDbLeaseStore) -> Any:
        rows = scan(store)
        if store._settings.name == "slow":
            cloud.clock.advance(40_000)
        return rows

    def pause(seconds: float) -> None:
        cloud.renew("etl", 0, 1)(seconds)
        cloud.renew("slow", 0, 1)(0)

    monkeypatch.setattr(DynamoDbLeaseStore, "scan", late)
    monkeypatch.setattr("spark_ssp.operations.inspection.lease_table._THREADS", 1)
    found = cloud.run("status", "--applications", "--json", sleep=pause, now_ms=_now(orders))
    assert [one["notRead"] for one in found.document()["applications"]] == [{}, {}]


def test_a_table_that_fails_once_is_read_again(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = orders.cloud
    cloud.table("etl", [_lease(n, _number(orders.last[n])) for n in (0, 1)])
    scan = DynamoDbLeaseStore.scan
    failures = [ServiceUnavailableError("etl", found="none", expected="one", next_step="wait")]

    def failing(store: DynamoDbLeaseStore) -> Any:
        if failures:
            raise failures.pop()
        return scan(store)

    monkeypatch.setattr(DynamoDbLeaseStore, "scan", failing)
    pause = cloud.renew("etl", 0, 1)
    found = cloud.run("status", "--applications", "--json", sleep=pause, now_ms=_now(orders))
    (etl,) = found.document()["applications"]
    # One reading shows no renewal: whether the owners live is not known.
    assert (found.code, etl["verdict"], etl["shards"]) == (6, "UNKNOWN", 2)


def test_an_application_without_a_lease_to_read_and_a_table_that_cannot_be_used(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.table("empty", [])
    cloud.table("locked", [])
    describe = DynamoDbCalls.once

    def locked(calls: DynamoDbCalls, operation: str, request: Mapping[str, Any]) -> Any:
        answer = describe(calls, operation, request)
        if operation == "DescribeTable" and request["TableName"] == "locked":
            status = "INACCESSIBLE_ENCRYPTION_CREDENTIALS"
            return {"Table": {**answer["Table"], "TableStatus": status}}
        return answer

    monkeypatch.setattr(DynamoDbCalls, "once", locked)
    found = cloud.run("status", "--applications", "--json", sleep=lambda _: None)
    applications = found.document()["applications"]
    assert [one["application"] for one in applications] == ["empty", "locked"]
    assert {one["verdict"] for one in applications} == {"UNKNOWN"}
    assert "no lease" in applications[0]["findings"][0]["reason"]


def test_where_nothing_is_seen_nothing_is_known_to_be_well(cloud: Cloud) -> None:
    found = cloud.run("status", "--applications")
    assert (found.code, "--region" in found.out) == (6, True)


def test_an_application_that_is_not_seen_is_not_well_because_a_query_is(orders: Orders) -> None:
    orders.run_batch(0, orders.last)
    arguments = ("status", str(orders.checkpoint.path))
    assert orders.cloud.run(*arguments).code == 0
    found = orders.cloud.run(*arguments, "--applications")
    assert (found.code, found.out.splitlines()[-1][:24]) == (6, "no lease table was found")
