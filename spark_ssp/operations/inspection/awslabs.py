"""Reads checkpoints of awslabs' spark-sql-kinesis-connector, as its source defines them.

Its offset of a batch holds where the batch *starts*. Where each shard's task ended is in a
separate file, `sources/<n>/shard-source/<batch>/<shard>` (`KinesisV2SourceOffset`,
`HDFSMetadataCommitter`); with `metadataCommitterType` DYNAMODB it is in a table instead.

An `AFTER_SEQUENCE_NUMBER` has the last user record that was read of an aggregated record, and -1 if
the record was not aggregated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_ssp.common.errors import UnsupportedError
from spark_ssp.grouping.identifiers import ShardId, StreamName
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Latest,
    Position,
    SequenceNumber,
    ShardEnd,
    TrimHorizon,
)
from spark_ssp.operations.inspection.errors import CheckpointFolderError, damaged
from spark_ssp.operations.inspection.folders import Folder
from spark_ssp.operations.inspection.spark_checkpoint import Checkpoint, parse_offset

_METADATA: Final = "metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwslabsPositions:
    """The positions after the last committed batch of one source."""

    stream: StreamName
    positions: Mapping[ShardId, Position | Latest]


def read_awslabs(folder: Folder, checkpoint: Checkpoint, source: int) -> AwslabsPositions:
    """Return the positions of a source. Raises CheckpointFolderError, UnsupportedError."""
    last = checkpoint.last
    name = f"source {source} of {checkpoint.location}"
    if last is None:
        raise CheckpointFolderError(
            name,
            found="no committed batch",
            expected="a batch that ended",
            next_step="start the other query with the same startingPosition as this one",
        )
    document = _parse(last.offsets[source] if source < len(last.offsets) else None)
    if document is None:
        raise CheckpointFolderError(
            name,
            found="an offset of another format",
            expected="an offset of awslabs' connector",
            next_step="leave --from out, or name the source by --source",
        )
    metadata = document.pop(_METADATA)
    starts = {ShardId(shard): entry for shard, entry in document.items()}
    path = f"sources/{source}/shard-source/{metadata['batchId']}"
    files = [name for name in folder.names(path) if not name.startswith(".")]
    if starts and not files:
        raise UnsupportedError(
            name,
            found=f"no {path}: the connector's metadataCommitterType may be DYNAMODB",
            expected="the ends of the last batch in the checkpoint (metadataCommitterType HDFS)",
            next_step="stop the query and start the other one at_timestamp shortly before its last "
            "batch: some records come twice",
        )
    ends: dict[ShardId, Mapping[str, Any]] = {}
    for file in files:
        try:
            ends[ShardId(file)] = json.loads(folder.read(f"{path}/{file}"))
        except (ValueError, RecursionError):
            raise damaged(checkpoint.location, f"{path}/{file}", "no JSON", "a position") from None
    return AwslabsPositions(
        stream=StreamName(str(metadata["streamName"])),
        positions={
            shard: _position(name, shard, {**starts.get(shard, {}), **ends.get(shard, {})})
            for shard in sorted(starts.keys() | ends.keys())
        },
    )


def _parse(text: str | None) -> dict[str, Any] | None:
    document = parse_offset(text)
    if not isinstance(document, dict) or not isinstance(document.get(_METADATA), dict):
        return None
    metadata = document[_METADATA]
    return document if {"streamName", "batchId"} <= metadata.keys() else None


def _position(name: str, shard: ShardId, entry: Mapping[str, Any]) -> Position | Latest:
    kind, text = str(entry.get("iteratorType")), str(entry.get("iteratorPosition", ""))
    sub = str(entry.get("subSequenceNumber", "-1"))
    is_number = text.isascii() and text.isdecimal()
    match kind:
        case "TRIM_HORIZON":
            return TrimHorizon()
        case "LATEST":
            return Latest()
        case "SHARD_END":
            return ShardEnd()
        case "AT_TIMESTAMP" if is_number:
            return AtTimestamp(millis=EpochMillis(int(text)))
        case "AFTER_SEQUENCE_NUMBER" if is_number:
            after = int(sub) if sub.isascii() and sub.isdecimal() else 0
            return AfterRecord(sequence_number=SequenceNumber(text), sub=after)
    raise UnsupportedError(
        f"{shard} in {name}",
        found=f"the position {kind} {text}"[:200],
        expected="TRIM_HORIZON, LATEST, AT_TIMESTAMP, AFTER_SEQUENCE_NUMBER or SHARD_END",
        next_step="start the other query at_timestamp shortly before the last batch",
    )
