"""Departures as log events, in records as a subscription of CloudWatch Logs writes them, with bad
records among them: `python -m examples.rehearsals.cloudwatch_logs`.

Needed: pip install '.[demo]' in a checkout.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from pyspark.sql import SparkSession

from examples.flights.data import departures
from examples.recipes import cloudwatch_logs
from examples.rehearsals.laptop import connection, run
from spark_ssp import EmbeddedKinesis

DEPARTURES: Final = 1_000
_BEGIN: Final = datetime(2013, 1, 1, tzinfo=UTC)


def message(kind: str, events: Sequence[dict[str, Any]]) -> bytes:
    """Return a message as CloudWatch Logs writes it."""
    return gzip.compress(
        json.dumps(
            {
                "messageType": kind,
                "owner": "123456789012",
                "logGroup": "/airport/departures",
                "logStream": "EWR",
                "subscriptionFilters": ["all"],
                "logEvents": events,
            }
        ).encode()
    )


CONTROL: Final = message(
    "CONTROL_MESSAGE",
    [
        {
            "id": "",
            "timestamp": 1_356_998_400_000,
            "message": "CWL CONTROL MESSAGE: Checking health of destination Kinesis stream.",
        }
    ],
)
BAD: Final = {
    b"": "not messages of CloudWatch Logs",
    b'{"messageType": "DATA_MESSAGE"}': "not gzip with UTF-8",
    gzip.compress(b"departures")[:-9]: "not gzip with UTF-8",
    gzip.compress(b"\xff"): "not gzip with UTF-8",
    gzip.compress(b"{}"): "not messages of CloudWatch Logs",
    gzip.compress(b'{"messageType": "DATA_MESSAGE"} junk'): "not messages of CloudWatch Logs",
    message("DATA_MESSAGE", [{"id": "1"}]): "not messages of CloudWatch Logs",
    message("DATA_MESSAGE", [{"id": "1", "timestamp": "noon", "message": ""}]): (
        "not messages of CloudWatch Logs"
    ),
    gzip.compress(b"[" * 100_000): "not messages of CloudWatch Logs",
}
"""Each with the reason for which it is to be set aside."""


def event(row: dict[str, Any]) -> dict[str, Any]:
    """Return a departure as an event."""
    time = _BEGIN + timedelta(seconds=row["index"])
    text = json.dumps({"carrier": row["carrier"], "index": row["index"]})
    return {
        "id": f"{row['index']:056}",
        "timestamp": round(time.timestamp() * 1000),
        "message": text,
    }


def rehearse(spark: SparkSession, folder: Path) -> bool:
    """Return True if each event is a row, and each bad record is in the second table."""
    events = [event(row) for row in departures(DEPARTURES).to_pylist()]
    with EmbeddedKinesis() as kinesis, patch.dict(cloudwatch_logs.SOURCE, connection(kinesis)):
        kinesis.state.create_stream("logs", shards=2)
        kinesis.state.put("logs", "control", CONTROL)
        messages = [
            message("DATA_MESSAGE", events[first : first + 20])
            for first in range(0, DEPARTURES, 20)
        ]
        for number in range(0, len(messages), 2):
            # As one record with two members, and as two records.
            both = messages[number : number + 2]
            for data in [gzip.compress(b"\n").join(both)] if number % 4 else both:
                kinesis.state.put("logs", f"stream-{number}", data)
        for data in BAD:
            kinesis.state.put("logs", "broken producer", data)
        cloudwatch_logs.start(spark, str(folder), availableNow=True).awaitTermination()

    table = spark.read.parquet(f"{folder}/events").orderBy("id").collect()
    rejected = spark.read.parquet(f"{folder}/rejected").collect()
    print(f"{len(table):,} events in the table, {len(events):,} put; {len(rejected)} set aside")
    found = [
        {"id": row.id, "timestamp": round(row.time.timestamp() * 1000), "message": row.message}
        for row in table
    ]
    places = {(row.group, row.stream) for row in table}
    return (
        found == events
        and places == {("/airport/departures", "EWR")}
        and {bytes(row.data): row.reason for row in rejected} == BAD
    )


if __name__ == "__main__":
    sys.exit(run(rehearse))
