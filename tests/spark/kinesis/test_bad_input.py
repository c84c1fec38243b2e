"""Invalid input fails early, with an error that names the fault and the next step."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_ssp.testing.kinesis import EmbeddedKinesis
from spark_ssp.testing.kinesis.state.faults import AccessDenied
from tests.support.operations.checkpoints import edit_last_offset
from tests.support.spark.queries import Trial, load


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"streamName": "no spaces"}, "streamName"),
        ({"startingPosition": "yesterday"}, "startingPosition"),
        ({"slots": "0"}, "slots"),
        ({"maxRecordsPerTriger": "10"}, "maxRecordsPerTrigger"),
        ({"consumerMode": "efo"}, "consumerName"),
        ({"kinesis.streamName": "orders"}, "kinesis.streamName"),
        ({"awsAccessKeyId": ""}, "awsAccessKeyId"),
    ],
)
def test_a_wrong_option_fails_in_load(
    spark: SparkSession, wrong: dict[str, str], said: str
) -> None:
    options = {"streamName": "orders", "region": "us-east-1"}
    with pytest.raises(PySparkException) as raised:
        load(spark, options | wrong)
    assert "[invalid-options]" in "".join(str(raised.value).splitlines()[-5:])
    assert said in str(raised.value)
    assert "Next step: " in str(raised.value)


def test_a_stream_that_is_absent(trial: Trial) -> None:
    text = trial.failure()
    # The last lines before those that Spark adds.
    lines = text.partition("=== Streaming Query ===")[0].splitlines()[-5:]
    assert "[stream-not-found] stream orders" in "".join(lines)
    assert trial.feed.endpoint_url in text
    assert "streamName" in text


@pytest.mark.parametrize("operation", ["ListShards", "GetRecords"])
def test_a_permission_that_is_missing(
    trial: Trial, kinesis: EmbeddedKinesis, operation: str
) -> None:
    trial.create(5)
    kinesis.faults.add(AccessDenied(), operation=operation, count=None)
    text = trial.failure()
    assert "[access] stream orders" in text
    assert f"permission for kinesis:{operation}" in text


def test_a_service_that_is_not_there(trial: Trial) -> None:
    with socket.socket() as nobody:  # bound, so that nothing else can listen there
        nobody.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        few = {"endpointUrl": endpoint, "retry.maxAttempts": "2", "retry.maxBackoff": "100ms"}
        text = trial.failure(few)
    assert "[service-unavailable] stream orders" in text
    assert endpoint in text
    assert "2 times" in text
    assert "endpointUrl" in text


# --- A checkpoint that does not fit --------------------------------------------------------------


@pytest.fixture
def resumed(trial: Trial) -> Trial:
    """A trial that has read five records of `orders`."""
    trial.create(5)
    trial.run_to_end()
    return trial


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (lambda offset: offset.update(v=3), "version 3"),
        (lambda offset: offset.update(v=2), "version 2"),
        (lambda offset: offset.pop("ssp"), "version 1"),
    ],
)
def test_an_offset_of_an_unknown_version_or_layout(
    resumed: Trial, edit: Callable[[dict[str, Any]], None], found: str
) -> None:
    edit_last_offset(resumed.checkpoint, edit)
    text = resumed.failure()
    assert "[incompatible-state]" in text
    assert found in text


def test_the_checkpoint_of_another_stream(resumed: Trial) -> None:
    resumed.feed.create("returns")
    text = resumed.failure({"streamName": "returns"})
    assert "[incompatible-state] option streamName" in text
    assert "add orders" in text


def test_a_start_that_leaves_a_shard_out(trial: Trial) -> None:
    trial.create(shards=2)
    position = json.dumps({"shardId-000000000000": "trim_horizon"})
    text = trial.failure({"startingPosition": position})
    assert "startingPosition" in text
    assert "shardId-000000000001" in text
