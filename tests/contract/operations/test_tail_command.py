"""`spark-ssp tail` and `spark-ssp plan`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import aws_kinesis_agg.aggregator
import pytest

from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    Position,
    SequenceNumber,
    ShardEnd,
    TrimHorizon,
)
from spark_ssp.operations.inspection.records import KinesisTail, Round
from spark_ssp.testing.kinesis import UnusualAnswers
from tests.contract.operations.conftest import Cloud
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.operations.checkpoints import WrittenCheckpoint, kinesis_end
from tests.support.operations.command import WIDTHS, Run, check_output, run
from tests.support.servers.kafka_broker import KafkaBroker

OUTPUTS = Path(__file__).parent / "outputs"


def _records(found: Run) -> list[dict[str, object]]:
    assert found.code == 0, found.err
    return [json.loads(line) for line in found.out.splitlines()]


@pytest.fixture
def orders(cloud: Cloud) -> Cloud:
    """Two records of an hour ago; then a split; then one of each child, one of them binary, and an
    aggregate of two records."""
    cloud.clock.set(1_800_000_000_000 + 60_000 * (cloud.clock.now_ms() % 1000))
    cloud.kinesis.state.create_stream("orders", shards=1)
    for key in ("a", "b"):
        cloud.put("orders", key, 0, f'{{"order": "{key}"}}'.encode())
    cloud.clock.advance(3_600_000)
    cloud.split("orders", 0, 1 << 127)
    cloud.put("orders", "c", 0, b"esc\x1b[31m")
    cloud.put("orders", "d", 1 << 127, b"\xff\x00" * 40)
    aggregator = aws_kinesis_agg.aggregator.RecordAggregator()
    for key in ("e", "f"):
        aggregator.add_user_record(key, f"aggregated {key}".encode(), "0")
    _, _, data = aggregator.clear_and_get().get_contents()
    cloud.put("orders", "e", 0, data)
    cloud.clock.advance(5_000)
    return cloud


@pytest.mark.parametrize("columns", WIDTHS)
def test_output(orders: Cloud, columns: int) -> None:
    found = orders.run("tail", "orders", "--from", "-2h", "--no-follow", columns=columns)
    assert found.code == 0, found.err
    assert "\x1b" not in found.out
    text = "\n".join(line[22:] for line in found.out.splitlines()) + "\n"
    text = re.sub(r"\b49[0-9]{54}\b", "49…", text)
    check_output(OUTPUTS / f"tail-{columns}.txt", text)


def test_starts_filters_and_limits(orders: Cloud) -> None:
    def keys(*arguments: str) -> list[object]:
        found = orders.run("tail", "orders", *arguments, "--json")
        return [record["key"] for record in _records(found)]

    everything = ["a", "b", "c", "d", "e", "f"]
    assert sorted(map(str, keys("--from", "trim_horizon", "--no-follow"))) == everything
    assert sorted(map(str, keys("--from", "-5m", "--no-follow"))) == everything[2:]
    assert keys("--no-follow") == []
    assert keys("--from", "trim_horizon", "--max", "2") == ["a", "b"]
    assert keys("--from=-2h", "--where", "partitionKey=f", "--max", "1") == ["f"]
    assert keys("--from=-2h", "--where", "shardId=2", "--no-follow") == ["d"]
    wrong = orders.run("tail", "orders", "--where", "data=x")
    assert wrong.code == 2
    assert orders.run("tail", "orders", "--from", "noon").code == 2


def test_positions_and_binary_data_as_json(orders: Cloud) -> None:
    found = {
        record["key"]: record
        for record in _records(orders.run("tail", "orders", "--from=-5m", "--json", "--no-follow"))
    }
    assert str(found["f"]["position"]).endswith("/1")
    assert found["f"]["data"] == "aggregated f"
    assert "data" not in found["d"]
    assert len(str(found["d"]["dataBase64"])) == 108


def test_one_shard_from_one_record(orders: Cloud) -> None:
    """Which is the first: so its position is that of a line of an earlier output."""
    lines = orders.run("tail", "orders", "--from=-5m", "--no-follow").out.splitlines()
    positions = {key: position for _, _, position, key, _ in (line.split("  ") for line in lines)}

    def keys(*arguments: str) -> list[object]:
        found = orders.run("tail", "orders", "--no-follow", "--json", *arguments)
        return [record["key"] for record in _records(found)]

    assert keys("--shard", "1", "--from", positions["c"]) == ["c", "e", "f"]
    assert keys("--shard", "shardId-000000000001", "--from", positions["f"]) == ["f"]
    assert keys("--shard", "0", "--from", "trim_horizon") == ["a", "b"]
    for wrong in (
        ("--from", positions["c"]),
        ("--shard", "9"),
        ("--partition", "1"),
        ("--source", "1"),
        ("--shard", "1", "--checkpoint", "x"),
    ):
        assert orders.run("tail", "orders", *wrong).code == 2
    assert orders.run("tail").code == 2


def test_the_planned_batch_of_a_checkpoint(orders: Cloud, tmp_path: Path) -> None:
    """From the middle of an aggregate on, through a split, up to its end; not the records before
    and after it."""
    found = _records(orders.run("tail", "orders", "--from=trim_horizon", "--no-follow", "--json"))
    at = {str(record["key"]): str(record["position"]) for record in found}
    later = orders.put("orders", "g", 0)
    orders.put("orders", "h", 0)

    def after(key: str) -> AfterRecord:
        number, _, sub = at[key].partition("/")
        return AfterRecord(sequence_number=SequenceNumber(number), sub=int(sub or 0))

    def end(first: Position, second: Position) -> dict[str, Any]:
        return kinesis_end({1: first, 2: second}, created_ms=created_ms)

    created_ms = orders.created_ms("orders")
    checkpoint = WrittenCheckpoint(path=tmp_path)
    checkpoint.plan(0, kinesis_end({0: after("a")}, created_ms=created_ms), at_ms=1)
    checkpoint.commit(0, at_ms=1)
    command = ("tail", "--checkpoint", str(tmp_path))
    assert orders.run(*command).code == 2  # no batch is planned
    first = kinesis_end({0: ShardEnd(), 1: after("e"), 2: TrimHorizon()}, created_ms=created_ms)
    checkpoint.plan(1, first, at_ms=1)

    def keys(*more: str) -> list[object]:
        return [record["key"] for record in _records(orders.run(*command, "--json", *more))]

    assert keys() == ["b", "c", "e"]
    assert keys("orders", "--source", "0", "--where", "shardId=1", "--max", "1") == ["c"]
    checkpoint.commit(1, at_ms=1)
    last = AfterRecord(sequence_number=SequenceNumber(later))
    checkpoint.plan(2, end(last, after("d")), at_ms=1)
    assert keys() == ["f", "g", "d"]
    assert orders.run(*command, "clicks").code == 2
    created_ms -= 1
    checkpoint.plan(2, end(last, after("d")), at_ms=1)
    again = orders.run(*command)
    assert (again.code, again.out) == (2, "")
    assert "[incompatible-state]" in again.err


def test_records_that_have_expired_are_noted(cloud: Cloud, tmp_path: Path) -> None:
    """As is a shard that has expired, and a user record that an aggregate does not have."""
    cloud.kinesis.state.create_stream("orders", shards=2)
    other = 1 << 127
    kept = [cloud.put("orders", "a", 0) for _ in range(2)]
    ended = cloud.put("orders", "b", other)
    cloud.split("orders", 1, other + 1)
    created_ms = cloud.created_ms("orders")
    checkpoint = WrittenCheckpoint(path=tmp_path)

    def after(number: str) -> AfterRecord:
        return AfterRecord(sequence_number=SequenceNumber(number))

    def shown(*arguments: str) -> tuple[list[object], list[str]]:
        run = cloud.run("tail", "orders", "--json", *arguments)
        return [record["position"] for record in _records(run)], run.err.splitlines()

    checkpoint.plan(0, kinesis_end({0: after(kept[0]), 1: after(ended)}, created_ms), at_ms=1)
    checkpoint.commit(0, at_ms=1)
    checkpoint.plan(1, kinesis_end({0: after(kept[1]), 1: ShardEnd()}, created_ms), at_ms=1)
    planned = ("--checkpoint", str(tmp_path))
    first = ("--no-follow", "--shard", "0", "--from", kept[0])
    assert shown(*planned) == ([kept[1]], [])
    assert shown(*first) == (kept, [])
    cloud.clock.advance(25 * 3_600_000)
    positions, (gap, gone) = shown(*planned)
    assert positions == []
    assert kept[0] in gap
    assert "shardId-000000000001 has expired" in gone
    positions, (gap,) = shown(*first)
    assert (positions, kept[0] in gap) == ([], True)
    kept.append(cloud.put("orders", "a", 0))
    positions, (gap,) = shown(*first)
    assert (positions, kept[0] in gap) == (kept[2:], True)
    assert shown("--no-follow", "--shard", "0", "--from", kept[2]) == (kept[2:], [])
    positions, (gap,) = shown("--no-follow", "--shard", "0", "--from", f"{kept[2]}/1")
    assert (positions, f"{kept[2]}/1" in gap) == ([], True)


@pytest.mark.parametrize(
    "answers",
    [UnusualAnswers(late_shard_end=True), UnusualAnswers(zero_lag=True), UnusualAnswers.all()],
)
def test_every_record_is_shown_whatever_lags_the_service_returns(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: UnusualAnswers
) -> None:
    """Of more than a page, and of the children of a split; those that come meanwhile do not keep
    the command from its end."""
    cloud.kinesis.state.create_stream("orders", shards=1)
    monkeypatch.setattr(cloud.kinesis.state, "answers", answers)

    def put(count: int) -> list[str]:
        records: list[Any] = [{"Data": b"{}", "PartitionKey": "a"}] * count
        answer = cloud.client.put_records(StreamName="orders", Records=records)
        cloud.clock.advance(1_000)
        return [record["SequenceNumber"] for record in answer["Records"]]

    parent = [*put(500), *put(500), *put(50)]
    checkpoint = WrittenCheckpoint(path=tmp_path)
    for batch, number in enumerate((parent[0], parent[-1])):
        after = AfterRecord(sequence_number=SequenceNumber(number))
        checkpoint.plan(batch, kinesis_end({0: after}, cloud.created_ms("orders")), at_ms=1)
    checkpoint.commit(0, at_ms=1)
    cloud.split("orders", 0, 1 << 127)
    every = [*parent, *put(2)]

    def shown(*arguments: str) -> list[object]:
        found = _records(cloud.run("tail", "orders", "--json", *arguments))
        return [record["position"] for record in found]

    newest = ("--from", "trim_horizon", "--no-follow")
    assert shown(*newest) == every
    assert shown("--shard", "0", *newest) == parent
    assert shown("--checkpoint", str(tmp_path)) == parent[1:]
    assert shown("--checkpoint", str(tmp_path), "--no-follow") == parent[1:]

    read = KinesisTail.read
    rounds = 0

    def read_and_put(tail: KinesisTail) -> Round:
        nonlocal rounds
        rounds += 1
        assert rounds < 20
        put(1)
        return read(tail)

    monkeypatch.setattr(KinesisTail, "read", read_and_put)
    assert set(shown(*newest)) > set(every)


def test_follows_into_the_children_of_a_split(cloud: Cloud) -> None:
    cloud.kinesis.state.create_stream("orders", shards=1)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        cloud.clock.advance(1_000)
        if len(pauses) == 1:
            cloud.put("orders", "before", 0)
            cloud.split("orders", 0, 1 << 127)
        if len(pauses) == 2:
            cloud.put("orders", "after", 0)

    found = cloud.run("tail", "orders", "--max", "2", "--json", sleep=pause)
    assert [record["key"] for record in _records(found)] == ["before", "after"]


def test_kafka(kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path) -> None:
    topic = topics.create(2, config={"retention.ms": "-1"})
    puts = [
        Record(key=b"k%d" % n, value=b"v", partition=n % 2, time_ms=10**12 + n) for n in range(6)
    ]
    topics.put(topic, [*puts, Record(key=None, value=None, partition=0)])
    servers = f"--bootstrap-servers={kafka_broker.bootstrap_servers}"

    def read(*arguments: str) -> list[dict[str, object]]:
        return _records(run("tail", topic, servers, "--json", *arguments))

    found = read("--from", "trim_horizon", "--no-follow")
    assert len(found) == 7
    assert {"key": None, "data": None}.items() <= next(r for r in found if not r["key"]).items()
    (one,) = read("--from", "earliest", "--where", "key=k3", "--max", "1")
    assert (one["part"], one["position"], one["timeMs"]) == ("1", "1", 10**12 + 3)
    assert read("--no-follow") == []
    odd = read("--from", "2001-09-09T01:46:40.002Z", "--where", "partition=1", "--no-follow")
    assert [record["key"] for record in odd] == ["k3", "k5"]
    text = run("tail", topic, servers, "--from", "trim_horizon", "--max", "1").out
    assert text.split("  ")[1:] in (["0", "0", "k0", "v\n"], ["1", "0", "k1", "v\n"])
    one_on = read("--partition", "1", "--from", "1", "--no-follow")
    assert [(record["position"], record["key"]) for record in one_on] == [("1", "k3"), ("2", "k5")]
    assert run("tail", topic, servers, "--partition", "9", "--no-follow").code == 2
    checkpoint = WrittenCheckpoint(path=tmp_path)
    checkpoint.plan(0, {topic: {"0": 1, "1": 1}}, at_ms=1)
    checkpoint.commit(0, at_ms=1)
    checkpoint.plan(1, {topic: {"0": 3, "1": 1}}, at_ms=1)
    planned = run("tail", "--checkpoint", str(tmp_path), servers, "--json")
    assert [record["key"] for record in _records(planned)] == ["k2", "k4"]
    missing = run("tail", f"{topic}-x", servers)
    assert (missing.code, missing.err.count("\n")) == (2, 1)
