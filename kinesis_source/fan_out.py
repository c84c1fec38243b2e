"""The driver's side of enhanced fan-out: the consumers of a query, and the ranges that are pushed
to them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from spark_ssp.grouping.identifiers import ShardKey, StreamName
from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis
from spark_ssp.kinesis_source.client.consumers import (
    ConsumerGuard,
    ConsumerService,
    GuardSettings,
    QueryConsumers,
    start_guard,
)
from spark_ssp.kinesis_source.model.ranges import SlotRange
from spark_ssp.kinesis_source.options.values import ConsumerLifecycle, KinesisOptions
from spark_ssp.kinesis_source.reading.pushed_pages import (
    RESUBSCRIBE_AFTER_S,
    choose_pushed,
    pushed_shards,
)


class FanOut:
    """Chooses the pushed ranges of each batch of one query. Used by one thread. `monotonic` is in
    seconds."""

    def __init__(
        self,
        options: KinesisOptions,
        consumers: QueryConsumers,
        *,
        monotonic: Callable[[], float],
        guard: ConsumerGuard | None = None,
    ) -> None:
        """`guard` deregisters the consumers at the end of the query."""
        self._guard = guard
        self._streams = options.streams
        self._consumers = consumers
        self._monotonic = monotonic
        self._pushed_at: dict[ShardKey, float] = {}
        self._counts: dict[StreamName, Counter[str]] = {}

    def assign(self, ranges: Sequence[SlotRange]) -> tuple[SlotRange, ...]:
        """Return the ranges of a batch with their consumer, and the choice for each. The first call
        finds or registers the consumers; see `QueryConsumers.active` for errors."""
        consumers = self._consumers.active(self._streams)
        now = self._monotonic()
        chosen = choose_pushed(ranges, consumers, self._pushed_at, now)
        self._pushed_at = {
            key: since
            for key, since in self._pushed_at.items()
            if now - since < RESUBSCRIBE_AFTER_S
        }
        self._pushed_at |= dict.fromkeys(pushed_shards(chosen), now)
        self._counts = {}
        for each in (each for slot in chosen for each in slot.shards):
            counts = self._counts.setdefault(each.stream.name, Counter())
            counts["pushed" if each.is_pushed else "polled"] += 1
        return chosen

    def close(self) -> None:
        """End the use of the consumers."""
        if self._guard is not None:
            self._guard.close()

    def entry(self, stream: StreamName) -> dict[str, Any]:
        """Return the number of shards of the last batch that were pushed and polled, for the
        query's progress."""
        counts = self._counts.get(stream, Counter())
        return {"fanOut": {"pushed": counts["pushed"], "polled": counts["polled"]}}


def open_fan_out(options: KinesisOptions, kinesis: Boto3Kinesis) -> FanOut | None:
    """Return the fan-out of a query; None with polling. Starts the process that deregisters the
    consumers at the end of the query, if it is to do so: the end of a batch read is that of Spark's
    application. Consumers of a query with leases are those of the application, and remain."""
    fan_out = options.fan_out
    if fan_out is None:
        return None
    guard: ConsumerGuard | None = None
    if fan_out.lifecycle is ConsumerLifecycle.JOB and options.leases is None:
        guard = start_guard(
            GuardSettings(
                streams=options.streams,
                consumer_name=fan_out.consumer_name or "",
                connection=options.connection,
                endpoint=kinesis.endpoint,
                watched=None if options.ending_position is None else os.getppid(),
            )
        )
    consumers = QueryConsumers(
        fan_out,
        ConsumerService(kinesis),
        describe_arn=lambda stream: kinesis.describe(stream).arn,
        monotonic=time.monotonic,
        sleep=time.sleep,
    )
    return FanOut(options, consumers, monotonic=time.monotonic, guard=guard)
