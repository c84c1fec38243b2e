"""Tasks of a query that share a slow uplink."""

from __future__ import annotations

from collections import Counter
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

from benchmarks.support.slow_link import SlowLink
from spark_ssp.testing.kinesis import EmbeddedKinesis


@pytest.mark.long
@pytest.mark.timeout(300)
def test_tasks_of_a_query_write_each_row_once_over_a_slow_link(
    spark: SparkSession,
) -> None:
    """Two batches of eight tasks, which need more than the read time-out of 5 s."""
    with EmbeddedKinesis() as kinesis:
        kinesis.state.create_stream("orders", shards=16)
        with SlowLink(urlsplit(kinesis.endpoint_url).port or 0, 500_000) as link:
            options = {
                "streamName": "orders",
                "endpointUrl": link.url,
                "region": "us-east-1",
                "awsAccessKeyId": "local",
                "awsSecretAccessKey": "local",
                "readTimeout": "5s",
            }
            for batch in range(2):
                rows = spark.range(0, 240, numPartitions=8).selectExpr(
                    f"cast({batch} * 240 + id AS string) AS partitionKey",
                    "repeat(uuid(), 555) AS data",
                )
                rows.write.format("kinesis-ssp").options(**options).mode("append").save()
        stored = Counter(one.partition_key for one in kinesis.state.records("orders"))
    assert len(stored) == 480
    assert stored.total() <= 1.02 * 480
