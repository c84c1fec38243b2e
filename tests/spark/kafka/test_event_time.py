"""Windows by event time over a backlog that limits divide, through two expansions."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_ssp.common.spark.pyspark_api import PASSES_LIMITS
from tests.support.kafka.event_time import LIMIT, count_through_expansions, topic_for_counts
from tests.support.kafka.feed import query_options
from tests.support.kafka.topics import KafkaTopics
from tests.support.servers.kafka_broker import KafkaBroker


@pytest.mark.long
def test_no_row_is_late_for_the_watermark_through_expansions(
    spark: SparkSession, kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    topic = topic_for_counts(topics)
    options = query_options(kafka_broker.options, topic) | {"maxOffsetsPerTrigger": str(LIMIT)}
    if not PASSES_LIMITS:
        options["trigger"] = "processingTime"
    records = spark.readStream.format("kafka-ssp").options(**options)
    frames = {
        name: records.option("alignBatches", aligned).load()
        for name, aligned in (("aligned", "true"), ("divided", "false"))
    }
    counts, expected = count_through_expansions(topics, frames, topic, tmp_path)
    aligned, divided = counts["aligned"], counts["divided"]
    assert aligned.minutes == expected
    assert aligned.late == 0
    assert max(aligned.sizes) <= LIMIT
    assert sum(aligned.sizes) == sum(expected.values()) == 1_500
    assert divided.late > 0, "the limit divided by backlog makes rows late"
