"""An offset of many shards: its size, and what it costs to write and read it.

    python -m benchmarks.offset_size [--shards 1000 10000] [--rounds 9]

In this process: from the offset to JSON text, and back. Milliseconds of wall time.
"""

from __future__ import annotations

import argparse
import json
import time

from benchmarks.report import Report, spread
from kinesis_source.model import AfterRecord, EpochMillis, SequenceNumber, ShardState
from kinesis_source.offset import Offset, StreamEntry, decode, encode
from task_grouping.identifiers import ShardId, ShardKey, SlotId, StreamName


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


def run(*, shards: list[int], rounds: int) -> Report:
    """Measure; each offset must read back as it was written."""
    report = Report(
        name="offset_size",
        command=f"python -m benchmarks.offset_size --rounds {rounds}",
        columns=("shards", "bytes", "bytes a shard", "writing ms", "reading ms"),
    )
    for count in shards:
        offset = offset_of(count, slots=64)
        writing: list[float] = []
        reading: list[float] = []
        text = ""
        for _ in range(rounds):
            began = time.perf_counter()
            text = json.dumps(encode(offset))
            written = time.perf_counter()
            back = decode(json.loads(text))
            reading.append(1000 * (time.perf_counter() - written))
            writing.append(1000 * (written - began))
            if back != offset:
                raise AssertionError("an offset does not read back as it was written")
        report.add(
            f"{count:,}",
            f"{len(text):,}",
            f"{len(text) / count:.0f}",
            spread(writing).text(1),
            spread(reading).text(1),
            shards=count,
            bytes=len(text),
            writing_ms=writing,
            reading_ms=reading,
        )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shards", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    run(shards=arguments.shards, rounds=arguments.rounds).publish()


if __name__ == "__main__":
    main()
