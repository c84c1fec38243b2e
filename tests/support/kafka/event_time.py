"""Windows by event time over a backlog that limits divide, through two expansions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_ssp.common.spark.pyspark_api import PASSES_LIMITS
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.spark.queries import await_end, start_patiently, wait_until

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

    def run(self, total: int) -> None:
        """Read to the latest offsets: `total` records in all runs."""
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
        )
        if PASSES_LIMITS:
            query = await_end(start_patiently(writer.trigger(availableNow=True).start))
        else:  # such a PySpark has no limits with availableNow
            query = start_patiently(writer.start)
            left = total - sum(self.sizes)
            wait_until(lambda: _rows(query) >= left, f"{left} records are read", query)
            query.stop()
        for report in query.recentProgress:
            self.sizes += [report["numInputRows"]] if report["numInputRows"] else []
            self.late += sum(
                operator["numRowsDroppedByWatermark"] for operator in report["stateOperators"]
            )

    def _update(self, frame: DataFrame, _: int) -> None:
        self.minutes |= dict(frame.collect())


def _rows(query: StreamingQuery) -> int:
    return sum(report["numInputRows"] for report in query.recentProgress)


def count_through_expansions(
    topics: KafkaTopics,
    frames: Mapping[str, DataFrame],
    topic: str,
    folder: Path,
    *,
    runs_after: Collection[int] = range(len(BACKLOGS)),
) -> tuple[dict[str, Counts], Counter[int]]:
    """Let each of `frames`, by its name, count the records of `topic`, in a run after each of these
    backlogs; return the counts, and the right ones."""
    counts = {name: Counts(frame, folder / name) for name, frame in frames.items()}
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
        for one in counts.values() if run in runs_after else ():
            one.run(expected.total())
    return counts, expected


def topic_for_counts(topics: KafkaTopics) -> str:
    """Create a topic for records with times of 1970."""
    return topics.create(len(BACKLOGS[0]), config={"retention.ms": "-1"})
