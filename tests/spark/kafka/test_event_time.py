"""Windows by event time over a backlog that limits divide, through two expansions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.support.kafka.feed import query_options
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.spark.queries import await_end, start_patiently

MINUTE_MS = 60_000
LIMIT = 200
BACKLOGS = (
    (300, 60),
    (200, 30, 100, 10),
    (150, 20, 100, 10, 200, 40, 5, 275),
)
"""The records of each partition before each run, one for each 20 minutes."""


@dataclass
class Counts:
    """Counts the records of each minute, in runs up to the latest offsets."""

    records: DataFrame
    checkpoint: Path
    minutes: dict[int, int] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    late: int = 0

    def run(self) -> None:
        counts = (
            self.records.withWatermark("timestamp", "2 minutes")
            .groupBy(F.window("timestamp", "1 minute"))
            .count()
            .select((F.unix_millis("window.start") / MINUTE_MS).cast("int"), "count")
        )
        writer = (
            counts.writeStream.foreachBatch(self._update)
            .outputMode("update")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
        )
        query = await_end(start_patiently(writer.start))
        for report in query.recentProgress:
            self.sizes += [report["numInputRows"]] if report["numInputRows"] else []
            self.late += sum(
                operator["numRowsDroppedByWatermark"] for operator in report["stateOperators"]
            )

    def _update(self, frame: DataFrame, _: int) -> None:
        self.minutes |= dict(frame.collect())


def test_no_row_is_late_for_the_watermark_through_expansions(
    spark: SparkSession, kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    # The records have times of 1970.
    topic = topics.create(len(BACKLOGS[0]), config={"retention.ms": "-1"})
    options = query_options(kafka_broker.options, topic) | {"maxOffsetsPerTrigger": str(LIMIT)}
    records = spark.readStream.format("kafka-ssp").options(**options)
    aligned = Counts(records.option("alignBatches", "true").load(), tmp_path / "aligned")
    divided = Counts(records.option("alignBatches", "false").load(), tmp_path / "divided")
    expected: Counter[int] = Counter()
    for run, backlog in enumerate(BACKLOGS):
        if run:
            topics.expand(topic, len(backlog))
        times = [
            (partition, (20 * run + 20 * place / count + 1) * MINUTE_MS)
            for partition, count in enumerate(backlog)
            for place in range(count)
        ]
        expected.update(int(time // MINUTE_MS) for _, time in times)
        topics.put(
            topic,
            [Record(value=b"", partition=number, time_ms=int(time)) for number, time in times],
        )
        aligned.run()
        divided.run()
    assert aligned.minutes == expected
    assert aligned.late == 0
    assert max(aligned.sizes) <= LIMIT
    assert sum(aligned.sizes) == sum(expected.values()) == 1_500
    assert divided.late > 0, "the limit divided by backlog makes rows late"
