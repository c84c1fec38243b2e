"""`spark-ssp leases` over tables of this project and of KCL 1 to 3."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_ssp.checkpoint.leases.lease import StreamIdentifier
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.testing.kinesis.state.faults import InternalFailure
from tests.contract.operations.conftest import Cloud, lease_row, of_stream
from tests.support.operations.command import WIDTHS, check_output, run

GOLDEN = Path(__file__).parents[2] / "golden"
OUTPUTS = Path(__file__).parent / "outputs"
WORKER = "7c6f1a52-8f0b-4a2e-9a59-0b1de1c1f1c4"


def _recorded(file: str) -> dict[str, dict[str, Any]]:
    """The rows that real workers wrote, by what they are."""
    rows = json.loads((GOLDEN / file).read_text())["rows"]
    return {row["what"]: row["item"] for row in rows}


QUARTER = 1 << 126


@pytest.fixture
def orders(cloud: Cloud) -> Cloud:
    """A stream of eight shards: 0 was split into 4 and 5, and 4 into 6 and 7.

    Of two records in shard 1, one is processed by a worker of this project. A KCL worker has 2 and
    4. The lease of 3 is free, 5 has none; 6 and 7 wait for the end of 4.
    """
    cloud.kinesis.state.create_stream("orders", shards=4)
    cloud.split("orders", 0, QUARTER // 2)
    cloud.split("orders", 4, QUARTER // 4)
    first, _ = (cloud.put("orders", key, QUARTER) for key in ("a", "b"))
    cloud.marks[f"{first[:5]}…{first[-8:]}"] = "49646…11111111"
    cloud.clock.advance(90_000)
    ours = {"leaseOwner": {"S": WORKER}, "sspOwner": {"S": WORKER}, "sspStream": {"S": "orders"}}
    kcl = {"leaseOwner": {"S": "kcl-2"}}
    rows = [
        lease_row(0, "SHARD_END", **kcl),
        lease_row(1, first, **ours),
        lease_row(2, "LATEST", **kcl),
        lease_row(3, "TRIM_HORIZON"),
        lease_row(4, "TRIM_HORIZON", **kcl, parentShardId={"SS": ["shardId-000000000000"]}),
    ]
    cloud.table("etl", rows)
    return cloud


@pytest.mark.parametrize("columns", WIDTHS)
def test_output(orders: Cloud, columns: int) -> None:
    """By default it is read twice, so that leases without a live owner show."""
    pause = orders.renew("etl", 1, 4)
    found = orders.run("leases", "etl", columns=columns, sleep=pause, now_ms=orders.clock.now_ms)
    assert found.code == 1, found.err
    check_output(OUTPUTS / f"leases-{columns}.txt", found.out, orders.marks)
    assert max(map(len, found.out.splitlines())) <= columns


def test_json(orders: Cloud) -> None:
    found = orders.run("leases", "etl", "--wait=0", "--json").document()
    states = {int(row["shard"][-2:]): row["state"] for row in found["shards"]}
    assert states == {
        0: "ended",
        1: "held",
        2: "held",
        3: "free",
        4: "held",
        5: "no lease",
        6: "waiting",
        7: "waiting",
    }
    assert [row["shard"][-1] for row in found["shards"] if row["nobodyReadsIt"]] == ["3", "5"]
    assert found["workers"] == [
        {"worker": WORKER, "leases": 1},
        {"worker": "kcl-2", "leases": 2},
    ]
    assert max(row["lagMs"] or 0 for row in found["shards"]) == pytest.approx(90_000, abs=2_000)


def _states(cloud: Cloud, *arguments: str, **more: Any) -> dict[int, str]:
    found = cloud.run("leases", "--wait=0", *arguments, "--json", **more).document()
    return {int(row["shard"][-2:]): row["state"] for row in found["shards"]}


@pytest.mark.parametrize("checkpoint", ["AT_TIMESTAMP", "LATEST"])
def test_closed_shards_before_the_start_of_a_kcl_need_no_lease(
    orders: Cloud, checkpoint: str
) -> None:
    """A KCL creates leases for the shards that were open then."""
    orders.table(
        "fresh", [lease_row(n, checkpoint, leaseOwner={"S": "kcl-2"}) for n in (1, 2, 3, 4)]
    )
    assert _states(orders, "fresh", "--stream", "orders", "--no-lag") == {
        **dict.fromkeys((1, 2, 3, 4), "held"),
        5: "no lease",
        **dict.fromkeys((6, 7), "waiting"),
    }


def test_a_second_reading_shows_renewals_and_stale_leases(orders: Cloud) -> None:
    """A counter is all that a row has: one reading proves nothing. The clock may be set between two
    readings."""
    pause = orders.renew("etl", 1)
    arguments = ("leases", "etl", "--no-lag", "--json")
    set_back = itertools.count(orders.clock.now_ms(), -3_600_000)

    found = orders.run(*arguments, sleep=pause, now_ms=lambda: next(set_back)).document()
    rows = {int(row["shard"][-2:]): row for row in found["shards"]}
    assert (rows[1]["state"], rows[1]["renewedAtMostMsAgo"]) == ("held", 15_000)
    assert (rows[2]["state"], rows[2]["renewedAtLeastMsAgo"]) == ("stale", 15_000)
    assert rows[2]["nobodyReadsIt"]
    pauses: list[float] = []

    def long_pause(seconds: float) -> None:
        pauses.append(seconds)
        pause(seconds)

    patient = _states(
        orders, "etl", "--failover=30s", "--wait=1m", sleep=long_pause, now_ms=orders.clock.now_ms
    )
    assert (patient[2], pauses) == ("stale", [60.0])
    short = orders.run(*arguments, "--failover", "30s", "--wait", "15s")
    assert (short.code, short.out) == (2, "")
    both = orders.run(*arguments, "--watch", "--wait", "15s")
    assert (both.code, both.out) == (2, "")
    text = orders.run(*arguments[:-1], sleep=pause, now_ms=orders.clock.now_ms).out
    assert "< 15 s ago" in text
    assert "1 of 5 shards read" in text
    assert "> 15 s ago" in text


def test_the_rows_of_a_deleted_stream_are_shown(orders: Cloud) -> None:
    orders.client.delete_stream(StreamName="orders")
    orders.clock.advance(60_000)
    found = orders.run("leases", "etl", "--wait=0", "--max-lag=1h")
    assert found.code == 1, found.err
    assert "no such stream: orders" in found.out
    assert WORKER in found.out
    document = orders.run("leases", "etl", "--wait=0", "--json").document()
    assert document["streamsNotFound"] == ["orders"]
    assert {row["stream"] for row in document["shards"]} == {"orders"}
    assert [row["state"] for row in document["shards"]] == ["ended", "held", "held", "free", "held"]
    assert {row["lagMs"] for row in document["shards"]} == {None}


def test_names_of_other_writers_reach_no_terminal_as_they_are(cloud: Cloud) -> None:
    name = "a\x1b[2J\x9b\u202eb" + "c" * 100_000
    cloud.table(
        "etl", [lease_row(0, "TRIM_HORIZON", leaseOwner={"S": name}, streamName={"S": name})]
    )
    for arguments in ((), ("--json",)):
        found = cloud.run("leases", "etl", "--wait=0", *arguments)
        assert {sign for sign in found.out + found.err if not sign.isprintable()} <= {"\n"}
        assert arguments or len(found.out) < 20_000
    assert found.document()["shards"][0]["owner"] == name


def test_watch_reads_until_it_is_interrupted(orders: Cloud) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    found = orders.run(
        "leases", "etl", "--no-lag", "--watch", "--interval", "2s", "--json", sleep=pause
    )
    assert (found.code, pauses) == (130, [2.0] * 3)
    assert len([json.loads(line) for line in found.out.splitlines()]) == 3


def test_watch_outlives_a_service_that_is_unavailable(orders: Cloud) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        orders.kinesis.faults.clear()
        if len(pauses) == 1:
            orders.kinesis.faults.add(InternalFailure(), operation="ListShards", count=None)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    options = ("--no-lag", "--watch", "--json", "--option", "retry.maxAttempts=1")
    found = orders.run("leases", "etl", *options, sleep=pause)
    assert (found.code, len(found.out.splitlines())) == (130, 2)
    assert found.err.count("[service-unavailable]") == 1


def test_max_lag(orders: Cloud) -> None:
    once = ("leases", "etl", "--wait", "0", "--max-lag")
    found = orders.run(*once, "80s")
    assert "too far behind: orders/shardId-000000000001" in found.out
    assert "too far behind" not in orders.run(*once, "2m").out
    assert "lag not known: orders/shardId-000000000002\n" in found.out  # at the KCL's LATEST
    neither = orders.run(*once, "2m", "--no-lag")
    assert (neither.code, neither.out) == (2, "")
    wrong = orders.run(*once, "soon")
    assert (wrong.code, wrong.out) == (2, "")
    assert "duration" in wrong.err


@pytest.mark.parametrize("checkpoints", [(), ("SHARD_END", "SHARD_END")])
def test_max_lag_needs_a_shard_to_judge(cloud: Cloud, checkpoints: tuple[str, ...]) -> None:
    cloud.table("etl", [lease_row(n, checkpoint) for n, checkpoint in enumerate(checkpoints)])
    once = ("leases", "etl", "--wait", "0")
    found = cloud.run(*once, "--max-lag", "10m")
    assert (found.code, found.err) == (1, "")
    assert "lag not known" in found.out
    assert cloud.run(*once).code == 0


def test_only_reads(orders: Cloud) -> None:
    """Nothing changes, and nothing is called that could change something."""
    before = orders.dynamodb.scan(TableName="etl")["Items"]
    orders.kinesis.calls.reset()
    orders.run("leases", "etl", "--wait", "0")
    assert orders.dynamodb.scan(TableName="etl")["Items"] == before
    assert orders.kinesis.calls.by_operation().keys() == {
        "DescribeStreamSummary",
        "ListShards",
        "GetShardIterator",
        "GetRecords",
    }


_KCL_2 = {
    0: "checkpointed",
    2: "taken",
    3: "stolen from another worker, not yet checkpointed since",
    4: "created for a child of a split",
}
_KCL_3 = {
    0: "read to the end, children written",
    2: "checkpointed, throughput measured",
    3: "a hand-over is under way",
    4: "taken, a child of a split",
    5: "created for a child of a split",
}


@pytest.mark.parametrize(
    ("file", "names", "states"),
    [
        ("lease_kcl_2_7_recorded.json", _KCL_2, {0: "held", 2: "held", 3: "held", 4: "free"}),
        (
            "lease_kcl_3_1_recorded.json",
            _KCL_3,
            {0: "ended", 2: "held", 3: "handoff", 4: "held", 5: "free"},
        ),
    ],
)
def test_rows_of_real_workers(
    cloud: Cloud, file: str, names: dict[int, str], states: dict[int, str]
) -> None:
    recorded = _recorded(file)
    cloud.table("real", [recorded[name] for name in names.values()])
    assert _states(cloud, "real") == states
    found = cloud.run("leases", "real", "--wait", "0")
    assert "with --stream" in found.out
    cloud.kinesis.state.create_stream("clicks", shards=4)
    cloud.split("clicks", 0, QUARTER // 2)
    with_stream = _states(cloud, "real", "--stream", "clicks", "--no-lag")
    assert with_stream == {1: "no lease", **states} | ({} if 5 in states else {5: "waiting"})


def test_the_leader_and_the_workers_of_kcl_3(cloud: Cloud) -> None:
    """In the lease table, as KCL 3.5 has them, and in tables of their own."""
    rows = _recorded("lease_kcl_3_5.json")
    worker = "10.0.3.17:7c6f1a52-8f0b-4a2e-9a59-0b1de1c1f1c4"
    kinds = (
        "the leader's lock",
        "a worker's metrics",
        "the migration from KCL 2",
        "taken and renewed",
    )
    cloud.table("one", [rows[kind] for kind in kinds])
    found = cloud.run("leases", "one", "--wait=0", now_ms=1_763_733_605_000)
    assert f"KCL 3 leader: {worker}" in found.out
    assert f"{worker} 5 s ago" in found.out
    plain = {
        name: value for name, value in rows["a worker's metrics"].items() if name != "leaseKey"
    }
    cloud.table("two", [rows["taken and renewed"]])
    cloud.table("two-WorkerMetricStats", [plain | {"wid": {"S": worker}}], key="wid")
    lock = {name: value for name, value in rows["the leader's lock"].items() if name != "leaseKey"}
    cloud.table("two-CoordinatorState", [lock | {"key": {"S": "Leader"}}], key="key")
    other = cloud.run("leases", "two", "--wait=0", "--json").document()
    assert other["leaders"] == [{"worker": worker, "at": "metrics"}]
    assert [row["worker"] for row in other["workerMetrics"]] == [worker]


_TABLES = sorted((GOLDEN / "lease_tables").glob("*.json"))
_KEYS = {"orders-etl-WorkerMetricStats": "wid", "orders-etl-CoordinatorState": "key"}


@pytest.mark.parametrize("path", _TABLES, ids=[path.stem for path in _TABLES])
def test_output_of_whole_tables_of_real_workers(cloud: Cloud, path: Path) -> None:
    """As `tests/interop/test_interop_commands.py` recorded them; that of KCL 1, which the other
    tests do not run, was recorded once in the same way."""
    recorded = json.loads(path.read_text())
    for name, rows in recorded["tables"].items():
        cloud.table(name, rows, _KEYS.get(name, "leaseKey"))
    cloud.kinesis.state.create_stream("orders", shards=4)
    cloud.split("orders", 0, QUARTER // 2)
    now = recorded["recordedMs"]
    for columns in WIDTHS:
        arguments = ("leases", "orders-etl", "--stream=orders", "--no-lag", "--wait=0")
        found = cloud.run(*arguments, columns=columns, now_ms=now)
        assert found.code == 0, found.err
        check_output(OUTPUTS / f"leases-{path.stem}-{columns}.txt", found.out)
        assert max(map(len, found.out.splitlines())) <= columns


def _identifier(cloud: Cloud, name: str) -> StreamIdentifier:
    found = cloud.client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
    return StreamIdentifier(
        account=found["StreamARN"].split(":")[4],
        name=StreamName(name),
        created=cloud.created_ms(name) // 1000,
    )


def _of(stream: StreamIdentifier, shard: int) -> dict[str, Any]:
    """A held lease of an application that reads several streams."""
    return of_stream(str(stream), lease_row(shard, "TRIM_HORIZON", leaseOwner={"S": "w"}))


def test_several_streams(cloud: Cloud) -> None:
    for name in ("clicks", "orders"):
        cloud.kinesis.state.create_stream(name, shards=1)
    streams = [_identifier(cloud, name) for name in ("clicks", "orders")]
    cloud.table("both", [_of(stream, 0) for stream in streams])
    found = cloud.run("leases", "both", "--wait=0", "--json")
    assert found.code == 0, found.err
    assert [(row["stream"], row["lagMs"]) for row in found.document()["shards"]] == [
        ("clicks", 0),
        ("orders", 0),
    ]
    assert "STREAM" in cloud.run("leases", "both", "--wait=0").out


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("is_missing", [False, True])
def test_rows_of_a_namesake_are_not_those_of_the_stream(
    cloud: Cloud, earlier: bool, is_missing: bool
) -> None:
    """Of another account, or of a stream of the name that was deleted: they replace no row of its
    own, and their positions are not in it."""
    cloud.kinesis.state.create_stream("orders", shards=2)
    stream = _identifier(cloud, "orders")
    other = replace(stream, account="999999999999")
    if earlier:
        other = replace(stream, created=stream.created - 1)
    cloud.put("orders", "key", 0)
    cloud.clock.advance(60_000)
    since = {"N": str(cloud.clock.now_ms())}
    position = {"checkpoint": {"S": "AT_TIMESTAMP"}, "sspCheckpointTimestamp": since}
    at_time = _of(other, 0) | position
    malformed = {key: value for key, value in _of(other, 1).items() if key != "leaseCounter"}
    free = {key: value for key, value in _of(other, 7).items() if key != "leaseOwner"}
    own = [_of(stream, shard) for shard in ((0,) if is_missing else (0, 1))]
    cloud.table("both", [*own, at_time, _of(other, 1) if is_missing else malformed, free])
    arguments = ("leases", "both", "--wait=0", "--max-lag=10m")
    found = cloud.run(*arguments, "--json")
    assert found.code == int(is_missing), found.out
    document = found.document()
    assert [(row["shard"][-1], row["state"]) for row in document["shards"]] == [
        ("0", "held"),
        ("1", "no lease" if is_missing else "held"),
    ]
    assert document["shards"][0]["lagMs"] == pytest.approx(60_000, abs=2_000)
    assert (document["streamsNotShown"], document["malformed"]) == ([str(other)], [])
    assert str(other) in cloud.run(*arguments).out


def test_failures_are_one_line(cloud: Cloud) -> None:
    missing = cloud.run("leases", "nothing")
    assert (missing.code, missing.out, missing.err.count("\n")) == (2, "", 1)
    assert "--table" in missing.err
    cloud.table("bad", [{"leaseKey": {"S": "shardId-000000000000"}}])
    malformed = cloud.run("leases", "bad", "--wait", "0")
    assert malformed.code == 1
    assert "malformed row: [malformed-lease]" in malformed.out
    keys = ("--option", "awsAccessKeyId=AKIAsecret", "--region=us-east-1")
    wrong = run("leases", "etl", *keys)
    assert wrong.code == 2
    assert "AKIAsecret" not in wrong.err
