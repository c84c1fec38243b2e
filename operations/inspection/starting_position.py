"""Options of another query that starts exactly after a position: no record twice, none left out.

A query on Kinesis needs the listing of the stream for that. The JSON by shard has to name every
shard that is still listed: one that is read already starts at its end (`latest`, for a closed
shard), one that is unread at its beginning. Shards that appear later begin at `trim_horizon`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka_source.model.offset import Positions
from kinesis_source.model.offset import Offset
from kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    Latest,
    Position,
    Shard,
    ShardEnd,
    StreamDescription,
    TrimHorizon,
)
from kinesis_source.planning.shard_lineage import ancestors
from ssp_common.errors import IncompatibleStateError, UnsupportedError
from task_grouping.identifiers import ShardId, StreamName, SystemStreamPartition

StreamPositions = Mapping[ShardId, Position | Latest]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """Options of a query, and remarks for the user."""

    options: Mapping[str, str]
    notes: tuple[str, ...] = ()


# --- Kinesis -------------------------------------------------------------------------------------


def kinesis_positions(
    offset: Offset, streams: Mapping[StreamName, StreamDescription]
) -> dict[StreamName, StreamPositions]:
    """Return the positions of a checkpoint by stream. Raises IncompatibleStateError for a stream
    that was created again, UnsupportedError if other workers read some of the shards."""
    for name, entry in offset.streams.items():
        if entry.leases is not None:
            raise UnsupportedError(
                f"stream {name}",
                found=f"a query that shares its shards by the lease table {entry.leases}, so that "
                "the checkpoint has only some of them",
                expected="the checkpoint of a query that reads every shard",
                next_step="start the other query with the same applicationName: it continues from "
                "the lease table",
            )
        if streams[name].created != entry.created:
            raise IncompatibleStateError(
                f"stream {name}",
                found="a stream that was deleted and created again since the checkpoint",
                expected="the stream that the query read",
                next_step="start the other query at trim_horizon: all records are new",
            )
    return {
        name: {
            key.shard: state.position
            for key, state in sorted((*offset.states.items(), *offset.waiting.items()))
            if key.stream == name
        }
        for name in sorted(offset.streams)
    }


def kinesis_start(
    positions: Mapping[StreamName, StreamPositions],
    listings: Mapping[StreamName, Sequence[Shard]],
) -> StartOptions:
    """Return `streamName` and `startingPosition`. The listings are those of now."""
    notes: list[str] = []
    by_stream: dict[str, dict[str, Any]] = {}
    for stream, known in positions.items():
        by_id = {shard.shard_id: shard for shard in listings[stream]}
        finished = ancestors(by_id, known.keys())
        by_stream[stream] = {
            shard: _point(known[shard])
            if shard in known
            else ("latest" if shard in finished else "trim_horizon")
            for shard in sorted(by_id)
        }
        notes += [
            f"{stream}/{shard} has expired with records that were not read: it is left out"
            for shard in sorted(known.keys() - by_id.keys())
            if not isinstance(known[shard], ShardEnd)
        ]
    names = sorted(positions)
    document: dict[str, Any] = by_stream[names[0]] if len(names) == 1 else by_stream
    return StartOptions(
        options={
            "streamName": ",".join(names),
            "startingPosition": json.dumps({**document, "default": "trim_horizon"}),
        },
        notes=tuple(notes),
    )


def _point(position: Position | Latest) -> Any:
    match position:
        case AfterRecord(sequence_number=number, sub=sub):
            point: dict[str, Any] = {"after_sequence_number": number}
            return point | ({"sub_sequence_number": sub} if sub else {})
        case AtTimestamp(millis=millis):
            return {"at_timestamp": millis}
        case TrimHorizon():
            return "trim_horizon"
        case ShardEnd() | Latest():
            return "latest"


# --- Kafka ---------------------------------------------------------------------------------------


def kafka_start(
    positions: Positions, partitions: Mapping[StreamName, int] | None = None
) -> StartOptions:
    """Return `subscribe` and `startingOffsets`. `partitions`: the present number of partitions by
    topic; those without a position start at their oldest record."""
    found: dict[str, dict[str, int]] = {}
    for ssp in sorted(positions):
        found.setdefault(ssp.stream, {})[str(ssp.partition)] = positions[ssp]
    for topic, count in sorted((partitions or {}).items()):
        for number in range(count):
            found.setdefault(topic, {}).setdefault(str(number), -2)
    note = (
        "a partition that was added since the checkpoint is not in startingOffsets: add it with "
        "-2, its oldest record, or give --bootstrap-servers, which does that"
    )
    return StartOptions(
        options={"subscribe": ",".join(sorted(found)), "startingOffsets": json.dumps(found)},
        notes=() if partitions is not None else (note,),
    )


def topics_of(positions: Mapping[SystemStreamPartition, int]) -> tuple[StreamName, ...]:
    """Return the topics, sorted."""
    return tuple(sorted({ssp.stream for ssp in positions}))
