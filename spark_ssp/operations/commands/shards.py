"""`spark-ssp shards`: The shards of a Kinesis stream: lineage, state, hash keys, consumers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import click

from spark_ssp.common.times import duration_text, time_text
from spark_ssp.grouping.identifiers import MAX_HASH_KEY, ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.model.shard import Shard, TrimHorizon
from spark_ssp.kinesis_source.planning.active_shards import children_of
from spark_ssp.operations.arguments import (
    Given,
    aws_options,
    connection,
    options_file,
    stream_ref,
)
from spark_ssp.operations.cli import Screen, write_json
from spark_ssp.operations.inspection.streams import StreamDetails, lags_of, read_stream
from spark_ssp.operations.snapshot import short_name


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
    reference = stream_ref(stream, aws)
    found = read_stream(reference, options)
    ages: dict[ShardId, int | None] = {}
    if oldest:
        name = StreamName(found.name)
        positions = {
            ShardKey(stream=name, shard=shard.shard_id): TrimHorizon() for shard in found.shards
        }
        lags = lags_of(positions, options, {name: reference})
        ages = {key.shard: age for key, age in lags.items()}
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
                ", ".join(map(short_name, row.other_parents)),
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


# --- The lineage of the shards, as a forest in the order of their hash keys -----------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRow:
    """A shard in its place. The child of a merge is below its parent with the lower hash keys."""

    shard: Shard
    branch: str
    """The lines before its name."""
    other_parents: tuple[ShardId, ...] = ()
    """Parents it is not below: the others of a merge, and those that have expired."""


def tree_rows(listed: Collection[Shard]) -> list[TreeRow]:
    """Return every shard once."""
    by_id = {shard.shard_id: shard for shard in listed}
    children = children_of(listed)
    place = {
        shard.shard_id: min(
            (parent for parent in shard.parents if parent in by_id),
            key=lambda parent: by_id[parent].hash_range.first,
            default=None,
        )
        for shard in listed
    }
    rows: list[TreeRow] = []

    def add(shard_id: ShardId, branch: str, below: str) -> None:
        shard = by_id[shard_id]
        others = tuple(parent for parent in shard.parents if parent != place[shard_id])
        rows.append(TreeRow(shard=shard, branch=branch, other_parents=others))
        own = [child for child in children.get(shard_id, ()) if place[child] == shard_id]
        for n, child in enumerate(sorted(own, key=lambda one: _order(by_id, one)), start=1):
            last = n == len(own)
            add(child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))

    for shard_id in sorted(by_id, key=lambda one: _order(by_id, one)):
        if place[shard_id] is None:
            add(shard_id, "", "")
    return rows


def _order(by_id: Mapping[ShardId, Shard], shard: ShardId) -> tuple[int, ShardId]:
    return by_id[shard].hash_range.first, shard


def percent_of_keys(shard: Shard) -> tuple[float, float]:
    """Return the start and the end of a shard's hash keys, in percent of all."""
    whole = MAX_HASH_KEY + 1
    keys = shard.hash_range
    return 100 * keys.first / whole, 100 * (keys.last + 1) / whole
