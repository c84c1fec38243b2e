"""A planner over the embedded service's state: no network, no Spark, and time that tests move."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.batch_planner import BatchPlanner
from spark_ssp.kinesis_source.client.api import KinesisService
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH, Offset, decode, encode
from spark_ssp.kinesis_source.model.ranges import ShardRange, SlotRange
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    Shard,
    ShardEnd,
    ShardState,
    StartingPosition,
    StreamRef,
    TrimHorizon,
    sequence_order,
)
from spark_ssp.kinesis_source.options.values import ConnectionOptions, KinesisOptions
from spark_ssp.kinesis_source.planning.input_partitions import plan_ranges
from spark_ssp.kinesis_source.probing.batch_limits import UNLIMITED, Limits
from spark_ssp.testing.kinesis import KinesisState, ManualClock
from spark_ssp.testing.kinesis.state.stream import Record
from tests.support.fakes.in_process import InProcessKinesis
from tests.support.kinesis.shards import key

HOUR_MS = 3_600_000
RETENTION_MS = 24 * HOUR_MS
DISCOVERED_MS = 11_000
"""A time after which the shards are listed again."""


def hide_shard(
    service: KinesisService, monkeypatch: pytest.MonkeyPatch, *, times: int, number: int = 0
) -> None:
    """Leave a shard out of the next answers of ListShards, which may be behind."""
    missing = [key(number).shard] * times
    list_shards = service.list_shards

    def incomplete(stream: StreamRef) -> tuple[Shard, ...]:
        hidden = missing.pop() if missing else ""
        return tuple(shard for shard in list_shards(stream) if shard.shard_id != hidden)

    monkeypatch.setattr(service, "list_shards", incomplete)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The result of one trigger."""

    start: Offset
    end: Offset
    ranges: tuple[SlotRange, ...]
    read: list[str]

    @property
    def shards(self) -> dict[str, int]:
        """The last digits of each shard that was read, and the slot that read it."""
        return {shard.shard[-2:]: part.slot for part in self.ranges for shard in part.shards}


class World:
    """One query over streams of the embedded service. Any change of the options is for tests."""

    def __init__(
        self,
        shards: int = 2,
        *,
        stream: str = "orders",
        clock: ManualClock | None = None,
        state: KinesisState | None = None,
        **changes: Any,
    ) -> None:
        """`state`: an existing service, with the stream."""
        self.clock = clock or ManualClock()
        self.state = state or KinesisState(clock=self.clock)
        if state is None:
            self.state.create_stream(stream, shards)
            self.clock.advance(60_000)
        self.service = InProcessKinesis(self.state, attempts=3)
        self.slept: list[float] = []
        self.offset = BEFORE_FIRST_BATCH
        self.texts: list[str] = []
        """Every offset passed to Spark, as it stores them."""
        self._put = 0
        self._changes: dict[str, Any] = {
            "streams": (StreamRef(name=StreamName(stream)),),
            "starting_position": StartingPosition(default=TrimHorizon()),
            **changes,
        }
        self.planner = self._planner()

    def _planner(self) -> BatchPlanner:
        self.options = self._options()
        return BatchPlanner(self.options, self.service, monotonic=self.monotonic, sleep=self.sleep)

    def _options(self, **more: Any) -> KinesisOptions:
        return KinesisOptions(connection=ConnectionOptions(), **self._changes, **more)

    def monotonic(self) -> float:
        return self.clock.now_ms() / 1000

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.advance(round(seconds * 1000 + 0.5))

    def restart(self, **changes: Any) -> None:
        """Start a new process: the state of the driver is lost. Options may have changed."""
        self.planner.close()
        self._changes |= changes
        self.planner = self._planner()

    # --- The stream -------------------------------------------------------------------------------

    def put(
        self, count: int = 1, *, stream: str = "orders", every_ms: int = 1, size: int = 0
    ) -> list[str]:
        """Put records with keys that spread over all shards; return their texts."""
        texts = []
        for _ in range(count):
            text = f"{self._put:0{size}d}"
            self.state.put(stream, f"key-{self._put}", text.encode())
            self.clock.advance(every_ms)
            self._put += 1
            texts.append(text)
        return texts

    # --- The query --------------------------------------------------------------------------------

    def plan(self, limits: Limits = UNLIMITED) -> Offset | None:
        """Return the end of the next batch; nothing is read and nothing is committed."""
        return self.planner.next_offset(self.offset, limits)

    def trigger(self, limits: Limits = UNLIMITED) -> Batch | None:
        """Run one micro-batch, read and committed; None if there is none."""
        end = self.plan(limits)
        if end is None:
            return None
        text = json.dumps(encode(end))
        self.texts.append(text)
        return self.run(decode(json.loads(text)))

    def run(self, end: Offset) -> Batch:
        """Read and commit a batch that was planned."""
        streams = {ref.name: ref for ref in self.options.streams}
        ranges = plan_ranges(self.offset, end, streams)
        batch = Batch(start=self.offset, end=end, ranges=ranges, read=self.read(ranges))
        self.offset = end
        return batch

    def read(self, ranges: Sequence[SlotRange]) -> list[str]:
        """Return the records of planned ranges."""
        return [
            record.data.decode()
            for part in ranges
            for shard in part.shards
            for record in self._records(shard)
        ]

    def drain(self, limits: Limits = UNLIMITED, *, most: int = 100) -> list[str]:
        """Trigger repeatedly, a second apart, until there is no batch; return the records."""
        read: list[str] = []
        for _ in range(most):
            batch = self.trigger(limits)
            if batch is None:
                return read
            read += batch.read
            self.clock.advance(1000)
        raise AssertionError(f"still not at the end after {most} triggers")

    def settle(self) -> World:
        """Read to the latest record; then the cursors are in place and nothing is counted."""
        self.drain()
        self.clock.advance(1000)
        assert self.trigger() is None
        self.clock.advance(1000)
        self.calls()
        return self

    def state_of(self, number: int, stream: str = "orders") -> ShardState:
        return self.offset.states[key(number, stream)]

    def calls(self) -> Mapping[str, int]:
        """Return the calls since the last call of this method, by operation."""
        counted = self.state.calls.by_operation()
        self.state.calls.reset()
        return counted

    def _records(self, wanted: ShardRange) -> list[Record]:
        """Return the records that a reader would deliver, read the plain way."""
        records = self.state.records(wanted.stream.name, wanted.shard)
        match wanted.start:
            case AfterRecord(sequence_number=number):
                after = sequence_order(number)
                records = [r for r in records if int(r.sequence_number) > after]
            case AtTimestamp(millis=millis):
                first = next((n for n, r in enumerate(records) if r.arrival_ms >= millis), None)
                records = [] if first is None else records[first:]
        if wanted.expect_first is not None:
            begin = sequence_order(wanted.expect_first)
            records = [r for r in records if int(r.sequence_number) >= begin]
        if isinstance(wanted.end, ShardEnd):
            return records
        last = sequence_order(wanted.end.sequence_number)
        assert any(int(r.sequence_number) == last for r in records), "the end is not in the range"
        return [r for r in records if int(r.sequence_number) <= last]
