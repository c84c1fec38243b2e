"""Streams of another account, of which checkpoints and lease tables only have the names. Commands
read them by the ARNs in the options of the query, and never one of the same name in their account.
`spark-ssp status`: `test_status_command.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_ssp.kinesis_source.model.shard import AfterRecord, SequenceNumber
from tests.contract.operations.conftest import Cloud, lease_row
from tests.support.operations.checkpoints import WrittenCheckpoint, kinesis_end
from tests.support.operations.command import Run


@pytest.fixture
def query(cloud: Cloud, tmp_path: Path) -> dict[str, str]:
    """A query with a planned batch: its checkpoint, its options with the ARN, and that ARN; and a
    checkpoint of awslabs' connector."""
    cloud.kinesis.state.create_stream("orders", shards=1)
    numbers = [SequenceNumber(cloud.put("orders", "key", 0)) for _ in range(2)]
    checkpoint = WrittenCheckpoint(path=tmp_path / "checkpoint")
    for batch, number in enumerate(numbers):
        end = kinesis_end({0: AfterRecord(sequence_number=number)}, cloud.created_ms("orders"))
        checkpoint.plan(batch, end, cloud.clock.now_ms())
    checkpoint.commit(0, cloud.clock.now_ms())
    awslabs = WrittenCheckpoint(path=tmp_path / "awslabs")
    awslabs.plan(0, {"metadata": {"streamName": "orders", "batchId": "0"}}, cloud.clock.now_ms())
    awslabs.commit(0, cloud.clock.now_ms())
    owned = {"leaseOwner": {"S": "worker"}, "sspStream": {"S": "orders"}}
    cloud.table("etl", [lease_row(0, "TRIM_HORIZON", **owned)])
    found = cloud.client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]
    options = tmp_path / "job.json"
    options.write_text(json.dumps({"streamARN": found["StreamARN"]}))
    return {
        "CHECKPOINT": str(checkpoint.path),
        "AWSLABS": str(awslabs.path),
        "OPTIONS": str(options),
        "ARN": found["StreamARN"],
    }


def _run(cloud: Cloud, query: dict[str, str], command: str) -> Run:
    words = [query.get(word, word) for word in command.split()]
    found = cloud.run(*words, "--options", query["OPTIONS"])
    assert (found.code, found.out == "") == (0, False), found.err
    return found


@pytest.mark.parametrize(
    "command",
    [
        "checkpoint CHECKPOINT --delay",
        "checkpoint CHECKPOINT --as-starting-position",
        "checkpoint AWSLABS --as-starting-position --from=awslabs",
        "tail --checkpoint CHECKPOINT",
        "tail orders --from=trim_horizon --no-follow",
        "leases etl --wait=0 --max-lag=1h",
        "shards orders --oldest",
        "watch CHECKPOINT --lag --json",
    ],
)
def test_they_are_read_by_the_arn_of_the_options(
    cloud: Cloud, query: dict[str, str], asked_arns: set[str | None], command: str
) -> None:
    _run(cloud, query, command)
    assert asked_arns == {query["ARN"]}


def test_the_starting_position_has_the_arn(cloud: Cloud, query: dict[str, str]) -> None:
    found = _run(cloud, query, "checkpoint CHECKPOINT --as-starting-position").document()
    assert found.keys() == {"streamARN", "startingPosition"}
    assert found["streamARN"] == query["ARN"]
