"""`spark-ssp shards`: the shards of a stream."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from spark_ssp.common.times import duration_text, time_text
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.model.shard import TrimHorizon
from spark_ssp.operations.inspection.shard_lags import lags_of
from spark_ssp.operations.inspection.shard_tree import TreeRow, percent_of_keys, tree_rows
from spark_ssp.operations.inspection.streams import StreamDetails, read_stream
from spark_ssp.operations.terminal.connection import (
    Given,
    aws_options,
    connection,
    options_file,
    stream_ref,
)
from spark_ssp.operations.terminal.output import Screen, shard_number, write_json


@click.command("shards")
@click.argument("stream")
@click.option(
    "--oldest",
    is_flag=True,
    help="Show the age of each shard's oldest record, which is the lag of a query that starts at "
    "trim_horizon. Reads each shard.",
)
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@options_file
@aws_options
def shards_command(stream: str, oldest: bool, as_json: bool, aws: Given) -> None:
    """Show the shards of STREAM (a name or an ARN): lineage, state, hash keys; and its settings.

    For the lag of a query or a KCL application, see `leases`.
    """
    options = connection(aws)
    reference = stream_ref(stream)
    found = read_stream(reference, options)
    ages: dict[ShardId, int | None] = {}
    if oldest:
        name = StreamName(found.name)
        positions = {
            ShardKey(stream=name, shard=shard.shard_id): TrimHorizon() for shard in found.shards
        }
        ages = {key.shard: age for key, age in lags_of(positions, options).items()}
    if as_json:
        write_json(_document(found, ages))
    else:
        _show(Screen(), found, ages)


def _show(screen: Screen, found: StreamDetails, ages: dict[ShardId, int | None]) -> None:
    count = sum(not shard.closed for shard in found.shards)
    screen.line(
        f"{found.name} · {found.status} · {found.mode.lower().replace('_', '-')} · {count} of "
        f"{len(found.shards)} shards open · retention "
        f"{duration_text(3_600_000 * found.retention_hours)} · created "
        f"{time_text(found.created_ms)}"
    )
    if found.distribution == "USER_PARTITION_KEY":
        screen.line("records are placed by their keys")
    else:
        screen.line(
            f"record distribution {found.distribution}: records of a key may be in any shard"
        )
    screen.line(_consumers(found))
    screen.line()
    screen.table(
        ("SHARD", "STATE", "HASH KEYS", "OLDEST", "ALSO CHILD OF"),
        [
            (
                f"{row.branch}{row.shard.shard_id}",
                "closed" if row.shard.closed else "open",
                _keys(row),
                _age(ages.get(row.shard.shard_id)),
                ", ".join(map(shard_number, row.other_parents)),
            )
            for row in tree_rows(found.shards)
        ],
        right=("HASH KEYS", "OLDEST"),
    )


def _consumers(found: StreamDetails) -> str:
    if found.consumers is None:
        return "registered consumers: unknown (kinesis:ListStreamConsumers failed)"
    names = [f"{consumer.name} ({consumer.status})" for consumer in found.consumers]
    return f"registered consumers: {', '.join(names) or 'none'}"


def _keys(row: TreeRow) -> str:
    first, last = percent_of_keys(row.shard)
    return f"{first:.2f} - {last:.2f} %"


def _age(millis: int | None) -> str | None:
    return None if millis is None else duration_text(millis)


def _document(found: StreamDetails, ages: dict[ShardId, int | None]) -> dict[str, Any]:
    document = asdict(found)
    return {
        "stream": found.name,
        "arn": found.arn,
        "status": found.status,
        "mode": found.mode,
        "distribution": found.distribution,
        "retentionHours": found.retention_hours,
        "createdMs": found.created_ms,
        "encryption": found.encryption,
        "consumers": None if found.consumers is None else list(document["consumers"]),
        "shards": [
            {
                "shard": shard.shard_id,
                "closed": shard.closed,
                "parents": list(shard.parents),
                "firstHashKey": str(shard.hash_range.first),
                "lastHashKey": str(shard.hash_range.last),
                "firstSequenceNumber": shard.first_sequence_number,
                "oldestRecordAgeMs": ages.get(shard.shard_id),
            }
            for shard in found.shards
        ],
    }
