"""Drivers, executors and clients in separate processes, without registration of the source."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.kinesis.feeds import Feed
from tests.support.spark.drivers import Driver, files_per_batch, records_in
from tests.support.spark.watched_imports import check_no_pandas, watched


@pytest.mark.long
@pytest.mark.parametrize("session", ["local-cluster[2,1,1024]", "connect"])
def test_executors_and_clients_of_their_own(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path, session: str
) -> None:
    feed.create("orders", shards=3)
    feed.put("orders", 60)
    feed.split_first("orders")
    feed.put("orders", 60)
    with Driver(
        tmp_path / "driver",
        [options | {"slots": "3"}],
        session=session,
        environment=watched(tmp_path),
    ) as driver:
        (result,) = driver.results()
    check_no_pandas(tmp_path)
    assert result["failure"] is None
    output = tmp_path / "driver" / "output-0"
    assert sorted(records_in(spark, output)) == sorted(feed.records)
    assert max(files_per_batch(output).values()) <= 3


def test_no_credentials_anywhere(feed: Feed, options: dict[str, str], tmp_path: Path) -> None:
    feed.create("orders")
    without = {name: value for name, value in options.items() if not name.startswith("aws")}
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")
    environment: dict[str, str | None] = dict.fromkeys(names)
    environment["HOME"] = str(tmp_path)
    with Driver(tmp_path / "driver", [without], environment=environment) as driver:
        (result,) = driver.results()
    assert "[access] AWS credentials: found no credentials" in result["failure"]
    assert "awsAccessKeyId and awsSecretAccessKey" in result["failure"]
