"""The way past a record that a query cannot process, as the guide describes it, with the planner
and the tasks of a query instead of Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from spark_ssp.kinesis_source.model.offset import encode
from spark_ssp.kinesis_source.model.shard import AfterRecord
from spark_ssp.kinesis_source.options.parse import parse_options
from spark_ssp.operations.acceptance.account import connect_account
from spark_ssp.operations.acceptance.queries import Query
from tests.contract.operations.conftest import Cloud
from tests.support.operations.checkpoints import WrittenCheckpoint
from tests.support.operations.command import run

KEYS = {"awsAccessKeyId": "local", "awsSecretAccessKey": "local", "region": "us-east-1"}
HALF = 1 << 127


def _query(cloud: Cloud, options: Mapping[str, str]) -> Query:
    connection = {**KEYS, "endpointUrl": cloud.kinesis.endpoint_url}
    parsed = parse_options({**connection, **options})

    def sleep(seconds: float) -> None:
        cloud.clock.advance(round(seconds * 1000))

    account = connect_account(
        parsed.connection,
        parsed.connection,
        monotonic=lambda: cloud.clock.now_ms() / 1000,
        sleep=sleep,
    )
    return Query(parsed, account, ignored=())


def test_a_record_is_found_and_passed(cloud: Cloud, tmp_path: Path) -> None:
    cloud.kinesis.state.create_stream("orders", shards=2)
    query = _query(cloud, {"streamName": "orders", "startingPosition": "trim_horizon"})
    checkpoint = WrittenCheckpoint(path=tmp_path)
    for number, datas in enumerate(((b"{}", b"{}"), (b"{}", b"not JSON", b"{}"))):
        for data in datas:
            cloud.put("orders", "key", HALF, data)
        cloud.put("orders", "key", 0)
        cloud.clock.advance(5_000)
        (batch,) = query.batches(rows=1)
        checkpoint.plan(number, encode(batch.end), cloud.clock.now_ms())
    query.close()
    checkpoint.commit(0, cloud.clock.now_ms())

    found = cloud.run("tail", "--checkpoint", str(tmp_path), "--json")
    assert found.code == 0, found.err
    rows = [json.loads(line) for line in found.out.splitlines()]
    assert [(row["part"], row["position"]) for row in rows] == [
        (row.shard, row.number) for task in batch.tasks for row in task
    ]
    (bad,) = [row for row in rows if row["data"] != "{}"]

    command = ("checkpoint", str(tmp_path), "--as-starting-position")
    after = f"{bad['part']}:{bad['position']}"
    passed = cloud.run(*command, "--after", after)
    assert passed.code == 0, passed.err
    (note,) = passed.err.splitlines()
    before = batch.start.states[next(k for k in batch.start.states if k.shard == bad["part"])]
    assert isinstance(before.position, AfterRecord)
    assert before.position.sequence_number in note  # what is left out begins there

    query = _query(cloud, passed.document())
    (again,) = query.batches(rows=2)
    query.close()
    first, rest = next(row for row in rows if row["part"] != bad["part"]), rows[rows.index(bad) + 1]
    assert Counter(row.number for task in again.tasks for row in task) == Counter(
        [first["position"], rest["position"]]
    )

    by_number = cloud.run(*command, "--after", f"1:{bad['position']}")
    assert by_number.out == passed.out
    for wrong in (f"7:{bad['position']}", f"1:{before.position.sequence_number}", "1", "1:x"):
        refused = cloud.run(*command, "--after", wrong)
        assert (refused.code, refused.out) == (2, "")
    assert cloud.run("checkpoint", str(tmp_path), "--after", after).code == 2


def test_an_offset_of_kafka_is_passed(tmp_path: Path) -> None:
    checkpoint = WrittenCheckpoint(path=tmp_path)
    checkpoint.plan(0, {"orders": {"0": 7, "1": 8}}, at_ms=1)
    checkpoint.commit(0, at_ms=1)
    command = ("checkpoint", str(tmp_path), "--as-starting-position")
    for part in ("1", "orders-1"):
        found = run(*command, "--after", f"{part}:9")
        assert json.loads(found.document()["startingOffsets"]) == {"orders": {"0": 7, "1": 10}}
    assert run(*command, "--after", "1:7").code == 2
