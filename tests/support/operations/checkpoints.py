"""Checkpoints with given offsets and times, written as Spark writes them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_ssp.grouping.identifiers import EpochMillis, ShardId, ShardKey, SlotId, StreamName
from spark_ssp.kinesis_source.model import offset
from spark_ssp.kinesis_source.model.shard import Position, ShardState
from tests.support.kinesis.planning import shard_id


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCheckpoint:
    """A folder, to which batches are added."""

    path: Path

    def plan(
        self, batch: int, end: Mapping[str, Any], at_ms: int, *others: Mapping[str, Any]
    ) -> None:
        """Write the offsets of a batch, which ends at `end`. `others`: those of other sources."""
        lines = ({"batchTimestampMs": at_ms}, end, *others)
        self._write(f"offsets/{batch}", "\n".join(("v1", *map(json.dumps, lines))))
        if not (self.path / "metadata").exists():
            self._write("metadata", '{"id": "query-1"}')

    def commit(self, batch: int, at_ms: int) -> None:
        """Write the file of a committed batch, at a time."""
        self._write(f"commits/{batch}", "v1\n{}")
        os.utime(self.path / f"commits/{batch}", ns=(at_ms * 1_000_000, at_ms * 1_000_000))

    def _write(self, name: str, text: str) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text, encoding="utf-8")


def edit_last_offset(checkpoint: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the offset that a query would go on from, as an accident or another version may."""
    offsets = (path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit())
    last = max(offsets, key=lambda path: int(path.name))
    version, metadata, offset = last.read_text().splitlines()
    document = json.loads(offset)
    edit(document)
    last.write_text("\n".join([version, metadata, json.dumps(document)]))
    (checkpoint / "offsets" / f".{last.name}.crc").unlink(missing_ok=True)


def kinesis_end(
    positions: Mapping[int, Position],
    created_ms: int,
    *,
    leases: str | None = None,
    others: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """An offset of the stream `orders`, by the numbers of its shards. `others`: the creation times
    of streams without shards."""
    stream = StreamName("orders")
    states = {
        ShardKey(stream=stream, shard=ShardId(shard_id(n))): ShardState(position=position)
        for n, position in positions.items()
    }
    streams = {stream: offset.StreamEntry(created=EpochMillis(created_ms), leases=leases)}
    for name, created in (others or {}).items():
        streams[StreamName(name)] = offset.StreamEntry(created=EpochMillis(created))
    return offset.encode(
        offset.Offset(
            slots=len(states),
            streams=streams,
            assignment={key: SlotId(n) for n, key in enumerate(sorted(states))},
            states=states,
        )
    )
