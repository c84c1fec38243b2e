"""A checkpoint of awslabs' connector, continued by this source:
`python -m examples.rehearsals.from_awslabs`.

The connector itself is not run: the rehearsal writes the files that it leaves in a checkpoint
(`metadataCommitterType` HDFS). Needed: pip install '.[cli,demo]' in a checkout.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from examples.flights.data import departures
from examples.rehearsals.laptop import connection, put, run, starting_position
from spark_ssp import EmbeddedKinesis

DEPARTURES: Final = 1_000


def leave_checkpoint(folder: Path, last: dict[str, str]) -> None:
    """Write the checkpoint of a query whose first batch ended at these sequence numbers."""

    def position(kind: str, text: str = "") -> dict[str, str]:
        found = {"iteratorType": kind, "iteratorPosition": text, "subSequenceNumber": "-1"}
        return found | {"isLast": "true"}

    ends = folder / "sources" / "0" / "shard-source" / "0"
    for path in (folder / "offsets", folder / "commits", ends):
        path.mkdir(parents=True)
    offset = {"metadata": {"streamName": "departures", "batchId": "0"}}
    offset |= {shard: position("TRIM_HORIZON") for shard in last}
    (folder / "metadata").write_text('{"id":"4b8a7c1e"}')
    (folder / "offsets" / "0").write_text(f'v1\n{{"batchTimestampMs":0}}\n{json.dumps(offset)}\n')
    (folder / "commits" / "0").write_text("v1\n{}\n")
    for shard, sequence_number in last.items():
        end = position("AFTER_SEQUENCE_NUMBER", sequence_number)
        (ends / shard).write_text(json.dumps(end))


def rehearse(spark: SparkSession, folder: Path) -> bool:
    """Return True if the new query reads exactly the departures after the checkpoint."""
    rows = departures(DEPARTURES).to_pylist()
    half = DEPARTURES // 2
    with EmbeddedKinesis() as kinesis:
        kinesis.state.create_stream("departures", shards=3)
        put(kinesis, "departures", rows[:half], key="carrier")
        shards = kinesis.state.open_shard_ids("departures")
        read = {shard: kinesis.state.records("departures", shard) for shard in shards}
        last = {shard: str(records[-1].sequence_number) for shard, records in read.items()}
        leave_checkpoint(folder / "old", last)
        put(kinesis, "departures", rows[half:], key="carrier")
        service = ("--region", "us-east-1", "--endpoint-url", kinesis.endpoint_url)
        start = starting_position(folder / "old", "--from", "awslabs", *service)
        options = start | connection(kinesis)
        print(f"spark-ssp checkpoint: startingPosition {options['startingPosition']}")
        records = spark.readStream.format("kinesis-ssp").options(**options).load()
        query = (
            records.selectExpr("get_json_object(CAST(data AS STRING), '$.index') AS i")
            .writeStream.option("checkpointLocation", f"{folder}/new")
            .trigger(availableNow=True)
            .start(f"{folder}/departures")
        )
        query.awaitTermination()

    found = sorted(int(row.i) for row in spark.read.parquet(f"{folder}/departures").collect())
    print(f"{half} departures read before, {len(found)} by the new query, {len(rows):,} put")
    return found == list(range(half, DEPARTURES))


if __name__ == "__main__":
    sys.exit(run(rehearse))
