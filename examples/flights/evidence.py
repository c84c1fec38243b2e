"""Collects the input of the check: the files written, the service's shards, Spark's counts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from examples.flights import data, script
from examples.flights.check import Evidence, ShardFact
from examples.flights.pipeline import DEPARTURES, MALFORMED
from examples.lease_table import LeaseFact
from spark_ssp import EmbeddedKinesis

_TIME = pa.timestamp("us", tz="UTC")
_WHERE = [
    ("shard", pa.string()),
    ("sequence", pa.string()),
    ("slot", pa.int32()),
    ("task", pa.int32()),
    ("row", pa.int64()),
    ("batch", pa.int64()),
]
_DEPARTURES = pa.schema(
    [
        ("key", pa.string()),
        *((f.name, _TIME if f.name == "time_hour" else f.type) for f in data.DEPARTURE),
        ("airline", pa.string()),
        *_WHERE,
    ]
)
_MALFORMED = pa.schema([("key", pa.string()), ("data", pa.binary()), *_WHERE])


def gather(
    kinesis: EmbeddedKinesis,
    stream: str,
    folder: Path,
    *,
    departures: int | None,
    slots: int,
    tasks: Mapping[int, int],
    leases: Mapping[str, LeaseFact],
) -> Evidence:
    """All of it, once the query has ended. `tasks` and `leases`: see `Evidence`."""
    table = data.departures(departures)
    return Evidence(
        expected=expected(table),
        departures=_read(folder / DEPARTURES, _DEPARTURES, "month", "batch"),
        malformed=_read(folder / MALFORMED, _MALFORMED, "batch"),
        spoilt=tuple((message.key, message.data) for message in script.malformed(table)),
        tasks=tasks,
        slots=slots,
        shards=_shards(kinesis, stream),
        splits=sum(kind is script.Reshard.SPLIT for _, kind in script.RESHARDS),
        merges=sum(kind is script.Reshard.MERGE for _, kind in script.RESHARDS),
        leases=leases,
    )


def expected(table: pa.Table) -> pa.Table:
    """The departures as they should be written: with their key, and the hour as a time."""
    hour = pc.strptime(table["time_hour"], format="%Y-%m-%dT%H:%M:%SZ", unit="us")
    place = table.schema.get_field_index("time_hour")
    return table.set_column(place, "time_hour", hour.cast(_TIME)).append_column(
        "key", data.partition_keys(table)
    )


def _read(table: Path, schema: pa.Schema, *partitions: str) -> pa.Table:
    """The Parquet files below a table's folder; no rows if there are none."""
    layout = ds.partitioning(pa.schema([schema.field(name) for name in partitions]), flavor="hive")
    files = sorted(str(path) for path in table.rglob("*.parquet"))
    found = ds.dataset(files, schema=schema, format="parquet", partitioning=layout)
    return found.to_table()


def _shards(kinesis: EmbeddedKinesis, stream: str) -> tuple[ShardFact, ...]:
    import boto3

    client = boto3.client("kinesis", **kinesis.client_settings())
    facts = []
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        kept = kinesis.state.shard(stream, shard["ShardId"])
        parents = (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
        facts.append(
            ShardFact(
                shard=shard["ShardId"],
                parents=tuple(parent for parent in parents if parent is not None),
                open=kept.is_open,
                records=kept.log.end,
                last=str(kept.last_number) if kept.log.end else None,
            )
        )
    return tuple(facts)
