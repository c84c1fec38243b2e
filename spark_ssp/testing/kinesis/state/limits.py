"""The service's rate limits per shard, stream and account. The size limits of single requests and
answers always hold; they are with the operations."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from spark_ssp.testing.kinesis.state.errors import KinesisError, limit_exceeded, throughput_exceeded

_SECOND_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Rates per second; None means no limit. `Limits()` has no limits, `Limits.strict()` has those
    of the service (Kinesis API reference and "Quotas and limits", provisioned mode)."""

    get_records_per_shard: int | None = None
    read_bytes_per_shard: int | None = None
    """Beyond it reads are refused for the rest of the second; a larger answer, up to 10 MiB, is
    returned at once and blocks the shard for as long as the rate would have needed."""
    get_shard_iterator_per_shard: int | None = None
    list_shards_per_stream: int | None = None
    list_streams_per_account: int | None = None
    describe_limits_per_account: int | None = None
    describe_stream_per_account: int | None = None
    describe_stream_summary_per_account: int | None = None
    write_records_per_shard: int | None = None
    write_bytes_per_shard: int | None = None
    reshards_per_account: int | None = None
    """SplitShard and MergeShards, each separately."""
    scaling_factor: int | None = None
    """UpdateShardCount may at most multiply or divide the number of shards by this."""
    register_consumer_per_account: int | None = None
    deregister_consumer_per_stream: int | None = None
    describe_consumer_per_stream: int | None = None
    list_consumers_per_stream: int | None = None
    consumers_per_stream: int | None = None
    """The number of consumers that a stream may have, those CREATING and DELETING included."""
    creating_consumers_per_stream: int | None = None
    """The number of consumers that may be CREATING at the same time."""
    subscribe_per_consumer_and_shard: int | None = None
    pushed_bytes_per_consumer_and_shard: int | None = None
    """Beyond it the events of a subscription wait. GetRecords does not count."""

    @classmethod
    def strict(cls) -> Limits:
        """Return the limits of the service."""
        return cls(
            get_records_per_shard=5,
            read_bytes_per_shard=2 * 1024 * 1024,
            get_shard_iterator_per_shard=5,
            list_shards_per_stream=1000,
            list_streams_per_account=5,
            describe_limits_per_account=1,
            describe_stream_per_account=10,
            describe_stream_summary_per_account=20,
            write_records_per_shard=1000,
            write_bytes_per_shard=1024 * 1024,
            reshards_per_account=5,
            scaling_factor=2,
            register_consumer_per_account=5,
            deregister_consumer_per_stream=5,
            describe_consumer_per_stream=20,
            list_consumers_per_stream=5,
            consumers_per_stream=20,
            creating_consumers_per_stream=5,
            subscribe_per_consumer_and_shard=1,
            pushed_bytes_per_consumer_and_shard=2 * 1024 * 1024,
        )


_CAPS: Final = {
    "DeregisterStreamConsumer": "deregister_consumer_per_stream",
    "DescribeLimits": "describe_limits_per_account",
    "DescribeStream": "describe_stream_per_account",
    "DescribeStreamConsumer": "describe_consumer_per_stream",
    "DescribeStreamSummary": "describe_stream_summary_per_account",
    "GetRecords": "get_records_per_shard",
    "GetShardIterator": "get_shard_iterator_per_shard",
    "ListShards": "list_shards_per_stream",
    "ListStreamConsumers": "list_consumers_per_stream",
    "ListStreams": "list_streams_per_account",
    "MergeShards": "reshards_per_account",
    "RegisterStreamConsumer": "register_consumer_per_account",
    "SplitShard": "reshards_per_account",
}
"""The limits of calls by operation."""


class _Window:
    """The use within the last second."""

    __slots__ = ("_uses", "total")

    def __init__(self) -> None:
        self._uses: deque[tuple[int, int]] = deque()
        self.total = 0

    def drain(self, now_ms: int) -> int:
        while self._uses and not now_ms - _SECOND_MS < self._uses[0][0] <= now_ms:
            self.total -= self._uses.popleft()[1]
        return self.total

    def add(self, now_ms: int, amount: int) -> None:
        self._uses.append((now_ms, amount))
        self.total += amount


class RateLimiter:
    """Counts the use of each limit, and refuses requests beyond the limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._windows: dict[tuple[str, str, str], _Window] = {}
        self._read_blocked_until: dict[tuple[str, str], int] = {}

    def get_records(self, stream: str, shard: str, now_ms: int) -> None:
        """Count a GetRecords call, or raise the error of the service."""
        blocked = self._read_blocked_until.get((stream, shard), 0) > now_ms
        cap = self.limits.read_bytes_per_shard
        if blocked or (
            cap is not None and self._window("read", stream, shard).drain(now_ms) >= cap
        ):
            raise _shard_rate("GetRecords", stream, shard)
        self.call("GetRecords", now_ms, stream=stream, shard=shard)

    def record_bytes_read(self, stream: str, shard: str, size: int, now_ms: int) -> None:
        """Count the bytes that a GetRecords call returned."""
        cap = self.limits.read_bytes_per_shard
        if cap is None:
            return
        self._window("read", stream, shard).add(now_ms, size)
        if size > cap:
            self._read_blocked_until[stream, shard] = now_ms + size * _SECOND_MS // cap

    def subscribe(self, consumer_arn: str, shard: str, now_ms: int) -> None:
        """Count a call of SubscribeToShard, or raise LimitExceeded."""
        cap = self.limits.subscribe_per_consumer_and_shard
        if cap is None:
            return
        window = self._window("SubscribeToShard", consumer_arn, shard)
        if window.drain(now_ms) >= cap:
            raise limit_exceeded(
                f"Rate exceeded for SubscribeToShard of consumer {consumer_arn} to shard {shard}."
            )
        window.add(now_ms, 1)

    def write(self, stream: str, shard: str, size: int, now_ms: int) -> None:
        """Count one record put, or raise the error of the service."""
        records, total = self.limits.write_records_per_shard, self.limits.write_bytes_per_shard
        if records is None and total is None:
            return
        count_window = self._window("writes", stream, shard)
        bytes_window = self._window("written", stream, shard)
        used = bytes_window.drain(now_ms)
        over_count = records is not None and count_window.drain(now_ms) + 1 > records
        # A record larger than a second's share passes when nothing else was put in that second.
        over_bytes = total is not None and used > 0 and used + size > total
        if over_count or over_bytes:
            raise _shard_rate("PutRecord", stream, shard)
        count_window.add(now_ms, 1)
        bytes_window.add(now_ms, size)

    def call(self, operation: str, now_ms: int, *, stream: str = "", shard: str = "") -> None:
        """Count a call, or raise the error of the service. `stream` and `shard` are those that the
        limit is for; by default it is for the account."""
        cap = getattr(self.limits, _CAPS[operation])
        if cap is None:
            return
        window = self._window(operation, stream, shard)
        if window.drain(now_ms) >= cap:
            if shard:
                raise _shard_rate(operation, stream, shard)
            raise limit_exceeded(f"Rate exceeded for {operation}{stream and f' on {stream}'}.")
        window.add(now_ms, 1)

    def _window(self, what: str, stream: str, shard: str) -> _Window:
        key = (what, stream, shard)
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window()
        return window


def _shard_rate(operation: str, stream: str, shard: str) -> KinesisError:
    return throughput_exceeded(f"Rate exceeded for shard {shard} in stream {stream} ({operation}).")
