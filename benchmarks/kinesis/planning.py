"""Offsets and planning of the Kinesis source: the cost of a trigger without its calls.

    python -m benchmarks.kinesis.planning [--shards 1 16 128 1000 10000] [--slots 4] [--rounds 9]

In this process, without Spark, and over a service that answers at once, with three records for each
shard or, where it is idle, with none: so the figures are this project's work on the driver only.
`offsets` are read and written as often as a trigger does it, as JSON, with the metrics of the lag;
`planning` is the probe of every shard, with its threads, and the assignment to tasks, which an idle
trigger does not reach. Milliseconds of processor time of one trigger; the first ones warm up and
are dropped. For comparison: a probe of an idle stream of the embedded service over HTTP, and the
same through botocore instead of the direct calls (`spark_ssp.common.aws.botocore_bypass`), in turn.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from benchmarks.kinesis.service import STREAM, kinesis_service
from benchmarks.support.report import Report, Spread, ratio, spread
from spark_ssp.common.aws.botocore_bypass import DirectCalls
from spark_ssp.common.spark.gc_freeze import PLANNER_THRESHOLDS
from spark_ssp.common.versioned_json import OffsetCache
from spark_ssp.grouping.identifiers import HashRange, ShardId, StreamName
from spark_ssp.kinesis_source.batch_planner import BatchPlanner
from spark_ssp.kinesis_source.client.boto3_client import connect, disconnect
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH, Offset, decode, encode
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    Position,
    RecordPage,
    SequenceNumber,
    Shard,
    ShardIterator,
    StreamDescription,
    StreamRef,
)
from spark_ssp.kinesis_source.options.parse import parse_options
from spark_ssp.kinesis_source.options.values import KinesisOptions
from spark_ssp.kinesis_source.planning.input_partitions import plan_ranges
from spark_ssp.kinesis_source.probing.batch_limits import UNLIMITED

PER_LOOK: Final = 3
WARM_UP: Final = 3
_TRIGGER_S: Final = 2.0
_CREATED: Final = EpochMillis(1_700_000_000_000)
_FIRST: Final = 49_600_000_000 * 10**45
_HASH_KEYS: Final = 1 << 128
_PROBED: Final = ("probe_ms", "probe_cpu_ms", "botocore_times", "botocore_cpu_times")


class ReadyKinesis:
    """A `KinesisService` that answers at once: each look at a shard finds a few more records, until
    it is `idle`."""

    def __init__(self, shards: int) -> None:
        step = _HASH_KEYS // shards
        self._shards = tuple(
            Shard(
                shard_id=ShardId(f"shardId-{number:012d}"),
                hash_range=HashRange(
                    first=number * step,
                    last=(number + 1) * step - 1 if number < shards - 1 else _HASH_KEYS - 1,
                ),
                first_sequence_number=SequenceNumber(str(_FIRST)),
                closed=False,
            )
            for number in range(shards)
        )
        self._given: Counter[ShardId] = Counter()
        self.idle = False
        self.millis = int(_CREATED) + 60_000

    def describe(self, stream: StreamRef, *, retry: bool = True) -> StreamDescription:
        """See `KinesisService`, as of the others."""
        return StreamDescription(
            name=stream.name,
            arn=f"arn:aws:kinesis:us-east-1:123456789012:stream/{stream.name}",
            created=_CREATED,
            retention_ms=24 * 3_600_000,
        )

    def list_shards(self, stream: StreamRef) -> tuple[Shard, ...]:
        return self._shards

    def open_iterator(
        self,
        stream: StreamRef,
        shard: ShardId,
        position: Position,
        *,
        inclusive: bool = False,
        retry: bool = True,
    ) -> ShardIterator:
        if isinstance(position, AfterRecord) and inclusive:
            self._given[shard] = int(position.sequence_number) - _FIRST
        return ShardIterator("ready")

    def get_records(
        self,
        stream: StreamRef,
        shard: ShardId,
        iterator: ShardIterator,
        *,
        limit: int,
        retry: bool = True,
    ) -> RecordPage:
        count = 0 if self.idle else min(PER_LOOK, limit)
        first = _FIRST + self._given[shard]
        self._given[shard] += count
        return RecordPage(
            sequence_numbers=[SequenceNumber(str(first + n)) for n in range(count)],
            partition_keys=["key"] * count,
            arrival_ms=[EpochMillis(self.millis)] * count,
            data=[b"x" * 200] * count,
            next_iterator=iterator,
            millis_behind_latest=0,
            service_time=EpochMillis(self.millis),
        )

    def service_time(self) -> EpochMillis:
        return EpochMillis(self.millis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Milliseconds of processor time of one trigger."""

    offsets: Spread
    planning: Spread

    @property
    def both(self) -> float:
        return self.offsets.median + self.planning.median


def _options(shards_source: dict[str, str], slots: int) -> KinesisOptions:
    return parse_options({**shards_source, "slots": str(slots)})


_NOWHERE: Final = {
    "streamName": STREAM,
    "region": "us-east-1",
    "startingPosition": "trim_horizon",
}
_STREAMS: Final = {StreamName(STREAM): StreamRef(name=StreamName(STREAM))}


def parts(shards: int, *, slots: int, rounds: int, idle: bool = False) -> Parts:
    """Measure a trigger over `shards` shards without its calls; `idle`: one without records."""
    service = ReadyKinesis(shards)
    seconds = 0.0

    def sleep(more: float) -> None:
        raise AssertionError(f"unexpected wait of {more} s")

    planner = BatchPlanner(
        _options(_NOWHERE, slots), service, monotonic=lambda: seconds, sleep=sleep
    )
    known, start = OffsetCache(encode, decode), json.dumps(encode(BEFORE_FIRST_BATCH))
    offsets: list[float] = []
    planning: list[float] = []
    # As in the process of a stream reader.
    collected = gc.get_threshold()
    gc.set_threshold(*PLANNER_THRESHOLDS)
    try:
        for number in range(WARM_UP + rounds):
            service.idle = idle and number >= WARM_UP
            seconds += _TRIGGER_S
            service.millis += round(_TRIGGER_S * 1000)
            start, of_offsets, of_planning = _trigger(
                planner, known, start, shards, idle=service.idle
            )
            offsets.append(of_offsets)
            planning.append(of_planning)
    finally:
        gc.set_threshold(*collected)
        planner.close()
    return Parts(offsets=spread(offsets[WARM_UP:]), planning=spread(planning[WARM_UP:]))


def _trigger(
    planner: BatchPlanner,
    known: OffsetCache[Offset, Offset],
    start: str,
    shards: int,
    *,
    idle: bool,
) -> tuple[str, float, float]:
    """Make the calls of one trigger to the source's reader; return the end offset and the
    milliseconds of offsets and planning."""
    began = time.process_time()
    document = json.loads(start)
    before = known.decode(document)
    read = time.process_time()
    after = planner.next_offset(before, UNLIMITED)
    if (after is None) != idle:
        raise AssertionError("every look finds records, or none does")
    planned = time.process_time()
    text = json.dumps(document if after is None else known.encode(after))
    json.dumps(planner.lag())
    written = time.process_time()
    if after is None:
        return text, 1000 * (read - began + written - planned), 1000 * (planned - read)
    # Spark hands both back to ask for the ranges.
    begin, until = known.decode(json.loads(start)), known.decode(json.loads(text))
    handed = time.process_time()
    ranges = plan_ranges(begin, until, _STREAMS, planner.hash_ranges(until))
    ended = time.process_time()
    if sum(len(part.shards) for part in ranges) != shards:
        raise AssertionError("every shard is read in every trigger")
    return text, 1000 * (read - began + handed - planned), 1000 * (planned - read + ended - handed)


@dataclass(slots=True)
class _Probes:
    """A planner on one connection, and the milliseconds of its idle probes: of time, and of this
    process's CPU."""

    planner: BatchPlanner
    offset: Offset = BEFORE_FIRST_BATCH
    took: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)

    def probe(self) -> None:
        """Probe every shard once, as an idle trigger does."""
        began, cpu = time.perf_counter(), time.process_time()
        self.offset = self.planner.next_offset(self.offset, UNLIMITED) or self.offset
        self.took.append(1000 * (time.perf_counter() - began))
        self.used.append(1000 * (time.process_time() - cpu))


def idle_probes(options: dict[str, str], *, slots: int, rounds: int) -> tuple[_Probes, _Probes]:
    """Probe an idle stream over HTTP: with the direct calls, and in turn through botocore."""
    connections = [
        # Connections are shared by queries with the same options.
        connect(_options({**options, "retry.maxAttempts": attempts}, slots).connection)
        for attempts in ("5", "6")
    ]
    # Without decoders it leaves every call to botocore.
    connections[1]._direct = DirectCalls(connections[1]._client, {})
    direct, botocore = (
        _Probes(
            BatchPlanner(
                _options(options, slots), connection, monotonic=time.monotonic, sleep=time.sleep
            )
        )
        for connection in connections
    )
    try:
        for number in range(WARM_UP + rounds):
            for one in (direct, botocore) if number % 2 else (botocore, direct):
                time.sleep(0.5)  # The least time between two probes of a shard.
                one.probe()
    finally:
        direct.planner.close()
        botocore.planner.close()
        disconnect()
    for one in (direct, botocore):
        del one.took[:WARM_UP], one.used[:WARM_UP]
    return direct, botocore


def run(*, shards: list[int], slots: int, rounds: int, most_by_http: int = 1_000) -> Report:
    """Measure; above `most_by_http` shards no service is asked."""
    report = Report(
        name="kinesis.planning",
        command="python -m benchmarks.kinesis.planning "
        f"--shards {' '.join(str(count) for count in shards)} --slots {slots} --rounds {rounds}",
        columns=(
            "shards",
            "offsets ms",
            "planning ms",
            "both, ms a shard",
            "both, idle ms",
            "idle probe over HTTP: ms",
            "its CPU, ms a shard",
            "through botocore: times its ms",
            "times its CPU",
        ),
    )
    for count in shards:
        found = parts(count, slots=slots, rounds=rounds)
        idle = parts(count, slots=slots, rounds=rounds, idle=True)
        cells = ["-"] * 4
        figures: dict[str, float | None] = dict.fromkeys(_PROBED)
        if count <= most_by_http:
            with kinesis_service(count) as service:
                direct, botocore = idle_probes(service.options(), slots=slots, rounds=rounds)
            took, used = spread(direct.took), spread(direct.used)
            slower, more = ratio(botocore.took, direct.took), ratio(botocore.used, direct.used)
            cells = [
                took.text(0),
                f"{used.median / count:.2f}",
                slower.text(2),
                more.text(2),
            ]
            medians = (took.median, used.median, slower.median, more.median)
            figures = dict(zip(_PROBED, medians, strict=True))
        report.add(
            f"{count:,}",
            found.offsets.text(1),
            found.planning.text(1),
            f"{found.both / count:.3f}",
            f"{idle.both:.1f}",
            *cells,
            shards=count,
            offsets_ms=found.offsets.median,
            planning_ms=found.planning.median,
            idle_ms=idle.both,
            **figures,
        )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 16, 128, 1_000, 10_000])
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    run(**vars(parser.parse_args())).publish()


if __name__ == "__main__":
    main()
