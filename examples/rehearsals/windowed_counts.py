"""Departures in order, one that is late, and one that is too late:
`python -m examples.rehearsals.windowed_counts`.

Needed: pip install '.[demo]' in a checkout.
"""

from __future__ import annotations

import sys
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Final
from unittest.mock import patch

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryTerminatedEvent

from examples.flights.data import departures
from examples.recipes import windowed_counts
from examples.rehearsals.laptop import connection, put, run
from spark_ssp import EmbeddedKinesis

DEPARTURES: Final = 842
"""Those of the first day."""


class Listener(windowed_counts.TooLate):
    """`ended` is set when the query has ended, after the reports of all its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = Event()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.ended.set()


def rehearse(spark: SparkSession, folder: Path) -> bool:
    """Return True if the counts of the day are right, with the late departure and without the one
    that was too late."""
    rows = departures(DEPARTURES).select(["origin", "time_hour"]).to_pylist()
    first, last = rows[0], max(rows, key=lambda row: row["time_hour"])
    # Its hour is as late as the watermark allows; the other one's hour has been written.
    newest = datetime.fromisoformat(last["time_hour"])
    late = last | {"time_hour": (newest - timedelta(hours=1)).isoformat()}
    next_day = last | {"time_hour": (newest + timedelta(days=1)).isoformat()}
    too_late = Listener()
    spark.streams.addListener(too_late)
    with EmbeddedKinesis() as kinesis, patch.dict(windowed_counts.SOURCE, connection(kinesis)):
        kinesis.state.create_stream("departures", shards=2)
        query = windowed_counts.start(spark, str(folder), processingTime="0 seconds")
        for step in (rows, [late], [first, next_day]):
            put(kinesis, "departures", step, key="origin")
            query.processAllAvailable()
        query.stop()
    # Spark reports in a thread; the end comes last.
    too_late.ended.wait(60)
    spark.streams.removeListener(too_late)
    dropped = too_late.dropped[query.id]

    table = spark.read.parquet(f"{folder}/counts")
    written = table.selectExpr("unix_seconds(hour) AS hour", "origin", "departures").collect()
    found = {(row.hour, row.origin): row.departures for row in written}
    expected = Counter((seconds(row["time_hour"]), row["origin"]) for row in [*rows, late])
    print(f"{sum(found.values())} departures counted in {len(written)} rows, ", end="")
    print(f"{len(rows) + 1} expected; {dropped} came too late")
    return len(written) == len(found) and found == expected and dropped == 1


def seconds(hour: str) -> int:
    """Return the time as seconds since 1970."""
    return int(datetime.fromisoformat(hour).timestamp())


if __name__ == "__main__":
    sys.exit(run(rehearse))
