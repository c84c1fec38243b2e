"""An offset of many shards: its size, and what it costs to write and read it.

python -m benchmarks.offset_size [--shards 10000]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from kinesis_source.model import AfterRecord, EpochMillis, SequenceNumber, ShardState
from kinesis_source.offset import Offset, StreamEntry, decode, encode
from task_grouping.identifiers import ShardId, ShardKey, SlotId, StreamName

ROUNDS = 9


def offset_of(shards: int, slots: int) -> Offset:
    """Every shard after a record, all of them read to their tip at some time."""
    stream = StreamName("orders")
    keys = [ShardKey(stream=stream, shard=ShardId(f"shardId-{n:012d}")) for n in range(shards)]
    return Offset(
        slots=slots,
        streams={stream: StreamEntry(created=EpochMillis(1_700_000_000_000))},
        assignment={key: SlotId(n % slots) for n, key in enumerate(keys)},
        states={
            key: ShardState(
                position=AfterRecord(
                    sequence_number=SequenceNumber(str(49_646_437_577 * 10**45 + n)), sub=0
                ),
                seen=EpochMillis(1_700_000_000_000 + n),
            )
            for n, key in enumerate(keys)
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shards", type=int, default=10_000)
    arguments = parser.parse_args()
    offset = offset_of(arguments.shards, slots=64)
    writing: list[float] = []
    reading: list[float] = []
    text = ""
    for _ in range(ROUNDS):
        began = time.perf_counter()
        text = json.dumps(encode(offset))
        written = time.perf_counter()
        if decode(json.loads(text)) != offset:
            raise AssertionError("an offset does not read back as it was written")
        writing.append(written - began)
        reading.append(time.perf_counter() - written)
    print(
        f"{arguments.shards:,} shards: {len(text):,} bytes, {len(text) / arguments.shards:.0f} a "
        f"shard; written in {statistics.median(writing) * 1000:.0f} ms, read and compared in "
        f"{statistics.median(reading) * 1000:.0f} ms (median of {ROUNDS})"
    )


if __name__ == "__main__":
    main()
