"""Planning of Kinesis when all shards are split at once: slots, lineage, ranges, offsets.

    python -m benchmarks.planning.shard_planning [--shards 10000] [--slots 4 64] [--rounds 5]

In this process, without a service. Half of the shards have just been read to their end, and all of
their children are listed. `mapping` gives the children their slots (the free-slot mapper), `by hash
range` is the other mapper; `lineage` finds the shards that can be read now; `ranges` shares a batch
over all children out to tasks; a `planning step` is lineage, mapping and ranges together. The
offset is written and read as JSON, as Spark has it done for every batch. The bare loop writes the
same positions, of each shard one sequence number, as JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.support.growth import Work, add_grown, columns, draw, grown
from benchmarks.support.report import OUTPUT, Report
from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import HashRange, ShardId, ShardKey, SlotId, StreamName
from spark_ssp.grouping.slots import MappableShard, mapper_for
from spark_ssp.kinesis_source.model.offset import Offset, StreamEntry, decode, encode
from spark_ssp.kinesis_source.model.ranges import SlotRange
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    SequenceNumber,
    Shard,
    ShardEnd,
    ShardState,
    StreamRef,
)
from spark_ssp.kinesis_source.planning.active_shards import (
    advance_lineage,
    advance_streams,
    assign_slots,
)
from spark_ssp.kinesis_source.planning.input_partitions import plan_ranges

STREAM: Final = StreamName("orders")
_HASH_KEYS: Final = 1 << 128
_FIRST: Final = 49_646_437_577 * 10**45
_SEEN: Final = EpochMillis(1_700_000_000_000)


def shard_id(number: int) -> ShardId:
    return ShardId(f"shardId-{number:012d}")


def key_of(number: int) -> ShardKey:
    return ShardKey(stream=STREAM, shard=shard_id(number))


def record(number: int) -> AfterRecord:
    """A position in shard `number`."""
    return AfterRecord(sequence_number=SequenceNumber(str(_FIRST + number)), sub=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshard:
    """`shards` // 2 parents at their end, two children of each."""

    shards: int
    slots: int

    @property
    def parents(self) -> range:
        return range(self.shards // 2)

    @property
    def children(self) -> range:
        return range(self.shards // 2, 3 * (self.shards // 2))

    def start(self) -> Offset:
        """Return the offset at which all parents have been read."""
        return _offset(
            self.slots,
            {key_of(n): SlotId(n % self.slots) for n in self.parents},
            {
                key_of(n): ShardState(position=ShardEnd(), last_caught_up_ms=_SEEN)
                for n in self.parents
            },
        )

    def listed(self) -> dict[ShardId, Shard]:
        """Parents and children."""
        step = _HASH_KEYS // len(self.parents)
        found: dict[ShardId, Shard] = {}
        for parent in self.parents:
            first, middle = parent * step, parent * step + step // 2
            last = (parent + 1) * step - 1
            found[shard_id(parent)] = _shard(parent, (), first, last)
            left = self.shards // 2 + 2 * parent
            found[shard_id(left)] = _shard(left, (parent,), first, middle - 1)
            found[shard_id(left + 1)] = _shard(left + 1, (parent,), middle, last)
        return found

    def mappable(self) -> list[MappableShard]:
        """The children, as a mapper sees them."""
        listed = self.listed()
        return [
            MappableShard(
                key=key_of(child),
                parents=tuple(
                    ShardKey(stream=STREAM, shard=p) for p in listed[shard_id(child)].parents
                ),
                hash_range=listed[shard_id(child)].hash_range,
            )
            for child in self.children
        ]

    def step(
        self, start: Offset, listed: dict[ShardId, Shard]
    ) -> tuple[Offset, Sequence[SlotRange]]:
        """Do the work of a trigger without its calls: return the end offset and the ranges of each
        slot."""
        members = advance_streams(start, [STREAM], {STREAM: listed})
        assignment = assign_slots(
            members, {STREAM: listed}, start.assignment, mapper_for("free"), self.slots
        )
        states = {
            key: replace(
                state,
                position=record(number),
                first=SequenceNumber(str(_FIRST)),
            )
            for number, (key, state) in enumerate(members.states.items())
        }
        end = _offset(self.slots, assignment, states)
        return end, plan_ranges(start, end, {STREAM: StreamRef(name=STREAM)})


def _offset(
    slots: int, assignment: dict[ShardKey, SlotId], states: dict[ShardKey, ShardState]
) -> Offset:
    return Offset(
        slots=slots,
        streams={STREAM: StreamEntry(created=_SEEN)},
        assignment=assignment,
        states=states,
    )


def _shard(number: int, parents: tuple[int, ...], first: int, last: int) -> Shard:
    return Shard(
        shard_id=shard_id(number),
        parents=tuple(shard_id(parent) for parent in parents),
        hash_range=HashRange(first=first, last=last),
        first_sequence_number=SequenceNumber(str(_FIRST)),
        closed=not parents,
    )


def _decoded(text: str, wanted: Offset) -> None:
    if decode(json.loads(text)) != wanted:
        raise AssertionError("an offset does not read back as it was written")


def steps(slots: int, shards: int) -> dict[str, Work]:
    """Return the measured steps."""
    reshard = Reshard(shards=shards, slots=slots)
    start, listed, mappable = reshard.start(), reshard.listed(), reshard.mappable()
    entries = {key.shard: state for key, state in start.states.items()}
    end, ranges = reshard.step(start, listed)
    read = sum(len(one.shards) for one in ranges)
    if read != len(reshard.children) or len(ranges) != min(slots, read):
        raise AssertionError(f"{read} of {len(reshard.children)} children, in {len(ranges)} tasks")
    text = json.dumps(encode(end))
    streams = {STREAM: StreamRef(name=STREAM)}
    return {
        "mapping": partial(mapper_for("free").assign, start.assignment, mappable, slots),
        "mapping by hash range": partial(mapper_for("hash-range").assign, {}, mappable, slots),
        "lineage": partial(advance_lineage, listed.values(), entries, {}),
        "ranges": partial(plan_ranges, start, end, streams),
        "planning step": partial(reshard.step, start, listed),
        "offset written": lambda: json.dumps(encode(end)),
        "offset read": partial(_decoded, text, end),
    }


def bare(shards: int) -> Work:
    """The bare loop."""
    positions = {
        shard_id(number): str(record(number).sequence_number)
        for number in Reshard(shards=shards, slots=1).children
    }
    return partial(json.dumps, positions)


def run(*, shards: int, slots: Sequence[int], rounds: int) -> Report:
    """Measure up to `shards` shards, on each number of slots."""
    report = Report(
        name="planning.shard_planning",
        command=f"python -m benchmarks.planning.shard_planning --shards {shards} "
        f"--slots {' '.join(str(count) for count in slots)} --rounds {rounds}",
        columns=columns("slots: step", "bare JSON"),
    )
    for count in slots:
        found = grown(partial(steps, count), bare, size=shards, rounds=rounds)
        add_grown(report, f"{count} slots", found)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--slots", type=int, nargs="+", default=[4, 64])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    report = run(shards=arguments.shards, slots=arguments.slots, rounds=arguments.rounds)
    report.publish()
    draw(report, OUTPUT / f"{report.name}.png")


if __name__ == "__main__":
    main()
