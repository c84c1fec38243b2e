"""The state of the embedded service: streams, faults, limits, counters. No sockets. Its methods
(`create_stream`, `put`, `split`, ...) are for tests: they change the state at once, without faults,
limits or counting. Clients call `dispatch.KinesisState.call`. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ClassVar

from spark_ssp.testing.kinesis.state.clock import Clock, as_clock
from spark_ssp.testing.kinesis.state.errors import in_use, invalid_argument, not_found
from spark_ssp.testing.kinesis.state.faults import CallLog, Faults
from spark_ssp.testing.kinesis.state.limits import Limits, RateLimiter
from spark_ssp.testing.kinesis.state.page_reads import UnusualAnswers
from spark_ssp.testing.kinesis.state.stream import (
    Change,
    Distribution,
    Record,
    Shard,
    Stream,
    StreamMode,
    StreamStatus,
)
from spark_ssp.testing.kinesis.state.subscription import Consumer, Consumers, Subscription

ACCOUNT = "000000000000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """The durations of changes of a stream, in milliseconds, with the status CREATING, UPDATING or
    DELETING. A split or merge takes effect at the end.

    `register_ms` and `deregister_ms`: those of consumers, CREATING and DELETING."""

    create_ms: int = 0
    delete_ms: int = 0
    reshard_ms: int = 0
    register_ms: int = 0
    deregister_ms: int = 0


class ServiceState:
    """One account's streams in one region."""

    _operations: ClassVar[Collection[str]]
    """The names of the operations that clients can call."""

    def __init__(
        self,
        *,
        clock: Clock | Callable[[], int] | None = None,
        region: str = "us-east-1",
        limits: Limits | None = None,
        delays: Delays | None = None,
        answers: UnusualAnswers | None = None,
    ) -> None:
        self.clock: Clock = as_clock(clock)
        self.region = region
        self.delays = delays or Delays()
        self.answers = answers or UnusualAnswers()
        """May be replaced at any time, for the calls that follow."""
        self.faults = Faults(self._operations)
        self.calls = CallLog()
        self.rate_limiter = RateLimiter(limits or Limits())
        self.lock = threading.RLock()
        self._streams: dict[str, Stream] = {}
        self._consumers: dict[str, Consumers] = {}  # by stream name
        self._last_era = 0
        self._created_ms: dict[str, int] = {}  # of each name's latest stream
        self._last_seconds: dict[str, dict[str, int]] = {}  # of consumers, by stream name
        self._serial = 0

    # --- Changes by a test --------------------------------------------------------------------

    def create_stream(
        self,
        name: str,
        shards: int = 1,
        *,
        mode: StreamMode | None = None,
        distribution: Distribution = Distribution.USER_PARTITION_KEY,
        max_record_bytes: int = 1024 * 1024,
        delay_ms: int = 0,
    ) -> Stream:
        """Create a stream of equal shards. Raises ResourceInUse if it exists. With AUTO it is
        on-demand; another `mode` raises InvalidArgument."""
        auto = distribution is Distribution.AUTO
        mode = mode or (StreamMode.ON_DEMAND if auto else StreamMode.PROVISIONED)
        if auto and mode is not StreamMode.ON_DEMAND:
            raise invalid_argument("Only an on-demand stream has the distribution strategy AUTO.")
        with self.lock:
            now_ms = self.clock.now_ms()
            self._settle([name], now_ms)
            if name in self._streams:
                raise in_use(f"Stream {name} under account {ACCOUNT} already exists.")
            # Distinguishes it from a deleted stream of that name.
            created_ms = max(now_ms, self._created_ms.get(name, 0) + 1)
            self._created_ms[name] = created_ms
            stream = Stream(
                name,
                arn=f"arn:aws:kinesis:{self.region}:{ACCOUNT}:stream/{name}",
                created_ms=created_ms,
                shard_count=shards,
                next_era=self._next_era,
                mode=mode,
                distribution=distribution,
                max_record_bytes=max_record_bytes,
            )
            self._streams[name] = stream
            last_seconds = self._last_seconds.setdefault(name, {})
            self._consumers[name] = Consumers(stream.arn, last_seconds)
            if delay_ms:
                due_ms = now_ms + delay_ms
                stream.schedule(
                    Change(due_ms=due_ms, status=StreamStatus.CREATING, apply=lambda _: None)
                )
            return stream

    def delete_stream(self, name: str, *, delay_ms: int = 0) -> None:
        """Delete a stream with all its records and consumers."""
        with self.lock:
            stream = self.stream(name)
            if not delay_ms:
                self._forget(name)
                return
            due_ms = self.clock.now_ms() + delay_ms
            stream.schedule(
                Change(
                    due_ms=due_ms,
                    status=StreamStatus.DELETING,
                    apply=lambda _: self._forget(name),
                )
            )

    def put(
        self,
        stream: str,
        partition_key: str | None,
        data: bytes,
        *,
        explicit_hash_key: int | None = None,
        shard_id: str | None = None,
        arrival_ms: int | None = None,
        visible_from_ms: int | None = None,
    ) -> Record:
        """Put one record; with an arrival time other than now, or hidden up to a time, if given.
        `shard_id`: the open shard that takes it regardless of its keys, as under AUTO."""
        with self.lock:
            of = self.stream(stream)
            if shard_id is None:
                shard = of.route(partition_key, explicit_hash_key)
            else:
                shard = of.open_shard(shard_id, self.clock.now_ms())
            arrival = self.clock.now_ms() if arrival_ms is None else arrival_ms
            return shard.put(partition_key, data, arrival, visible_from_ms)

    def split(self, stream: str, shard_id: str, at: int | None = None) -> tuple[str, str]:
        """Split a shard in the middle, or at hash key `at`; return the children's ids, lower one
        first."""
        with self.lock:
            now_ms = self.clock.now_ms()
            of = self.stream(stream)
            if at is None:
                hash_range = of.shard(shard_id, now_ms).hash_range
                at = (hash_range.first + hash_range.last + 1) // 2
            lower, upper = of.split(shard_id, at, now_ms)
            return lower.shard_id, upper.shard_id

    def merge(self, stream: str, shard_id: str, adjacent_shard_id: str) -> str:
        """Merge two adjacent shards; return the child's id."""
        with self.lock:
            now_ms = self.clock.now_ms()
            return self.stream(stream).merge(shard_id, adjacent_shard_id, now_ms).shard_id

    def scale(self, stream: str, target: int) -> None:
        """Split and merge until there are `target` open shards of equal size."""
        with self.lock:
            self.stream(stream).scale(target, self.clock.now_ms())

    def trim(
        self,
        stream: str,
        shard_id: str,
        *,
        before_sequence_number: str | None = None,
        before_ms: int | None = None,
    ) -> int:
        """Drop a shard's oldest records: those before a sequence number, or that arrived before a
        time, or all if neither is given. Return their number."""
        with self.lock:
            log = self.shard(stream, shard_id).log
            if before_sequence_number is not None:
                return log.trim_before(log.at_number(int(before_sequence_number)))
            if before_ms is not None:
                return log.trim_before_time(before_ms)
            return log.trim_before(log.end)

    def set_retention_hours(self, stream: str, hours: int) -> None:
        """Change the retention period to any number of hours."""
        with self.lock:
            self.stream(stream).set_retention_hours(hours, self.clock.now_ms())

    def set_distribution(self, stream: str, distribution: Distribution) -> None:
        """Change the record distribution strategy of an on-demand stream, effective immediately."""
        with self.lock:
            self.stream(stream).set_distribution(distribution)

    def register_consumer(self, stream: str, name: str) -> Consumer:
        """Register a consumer of enhanced fan-out, ACTIVE at once; ResourceInUse if it exists."""
        with self.lock:
            return self.consumers(stream).register(name, self.clock.now_ms(), delay_ms=0)

    def deregister_consumer(self, stream: str, name: str) -> None:
        """Deregister a consumer; its subscriptions end."""
        with self.lock:
            self.consumers(stream).deregister(name, self.clock.now_ms(), delay_ms=0)

    def set_limits(self, limits: Limits) -> None:
        """Replace the limits and reset their use."""
        with self.lock:
            self.rate_limiter = RateLimiter(limits)

    # --- Queries ------------------------------------------------------------------------------

    def stream_names(self) -> list[str]:
        """Return the names of all streams, sorted."""
        with self.lock:
            self._settle(list(self._streams), self.clock.now_ms())
            return sorted(self._streams)

    def stream(self, name: str) -> Stream:
        """Return the stream; raise ResourceNotFound if it does not exist."""
        with self.lock:
            self._settle([name], self.clock.now_ms())
            stream = self._streams.get(name)
            if stream is None:
                raise not_found(f"Stream {name} under account {ACCOUNT} not found.")
            return stream

    def shard(self, stream: str, shard_id: str) -> Shard:
        """Return a shard of a stream; raise ResourceNotFound if it does not exist."""
        with self.lock:
            return self.stream(stream).shard(shard_id, self.clock.now_ms())

    def open_shard_ids(self, stream: str) -> list[str]:
        """Return the ids of the open shards, by hash key."""
        with self.lock:
            return [shard.shard_id for shard in self.stream(stream).open_shards()]

    def records(self, stream: str, shard_id: str | None = None) -> list[Record]:
        """Return all records of a shard (hidden ones too), or of all shards, in shard order."""
        with self.lock:
            now_ms = self.clock.now_ms()
            of = self.stream(stream)
            shards = of.shards(now_ms) if shard_id is None else [of.shard(shard_id, now_ms)]
            found: list[Record] = []
            for shard in shards:
                log = of.shard(shard.shard_id, now_ms).log
                everything = log.slice(log.horizon, log.end, limit=log.end, max_bytes=1 << 62)
                found.extend(everything.records)
            return found

    def consumers(self, stream: str) -> Consumers:
        """Return the registered consumers of a stream; raise ResourceNotFound if it does not
        exist."""
        with self.lock:
            return self._consumers[self.stream(stream).name]

    def subscriptions(self, stream: str) -> list[Subscription]:
        """Return the subscriptions to shards of a stream that have not ended."""
        with self.lock:
            return [
                subscription
                for consumer in self.consumers(stream).all(self.clock.now_ms())
                for subscription in consumer.newest.values()
                if not subscription.ended
            ]

    def next_serial(self) -> int:
        """Return a new number, which makes tokens differ."""
        self._serial += 1
        return self._serial

    # --- Helpers ------------------------------------------------------------------------------

    def _forget(self, name: str) -> None:
        del self._streams[name]
        del self._consumers[name]

    def _next_era(self) -> int:
        self._last_era = max(self.clock.now_ms() // 1000, self._last_era + 1)
        return self._last_era

    def _settle(self, names: list[str], now_ms: int) -> None:
        """Apply the changes of these streams that are due."""
        for name in names:
            stream = self._streams.get(name)
            if stream is not None:
                stream.settle(now_ms)
