"""Remembers in a process, from task to task, the read rates of shards.

A shard grants 5 GetRecords calls and 2 MiB per second to all its readers together (Kinesis API
reference, GetRecords). Real endpoints always enforce this. A service on the same machine may grant
any rate, so its streams are read at full speed until the first throttled answer.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

from spark_ssp.common.options.endpoints import is_loopback
from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.model.ranges import ShardRange
from spark_ssp.kinesis_source.options.values import ConnectionOptions

_StreamKey = tuple[str | None, str | None, str, str | None]
_MAX_REMEMBERED: Final = 10_000
"""Shards whose next call is remembered. Beyond it, those that may be called already are dropped."""


@dataclass(slots=True)
class ReadRates:
    """The rates of the streams that one process reads. Thread-safe. Times are monotonic seconds."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _throttled: set[_StreamKey] = field(default_factory=set)
    _next_calls: dict[tuple[_StreamKey, ShardId], float] = field(default_factory=dict)

    def are_enforced(self, range_: ShardRange, connection: ConnectionOptions) -> bool:
        """Return whether reads of this stream must keep to the API's rates."""
        if not is_loopback(connection.endpoint_url):
            return True
        with self._lock:
            return _stream_key(range_, connection) in self._throttled

    def record_throttling(self, range_: ShardRange, connection: ConnectionOptions) -> None:
        """Remember that the service enforces its rates on this stream."""
        with self._lock:
            self._throttled.add(_stream_key(range_, connection))

    def next_call(self, range_: ShardRange, connection: ConnectionOptions, now: float) -> float:
        """Return the time of the shard's next call, as the last reader of this process left it."""
        with self._lock:
            return self._next_calls.get((_stream_key(range_, connection), range_.shard), now)

    def set_next_call(
        self, range_: ShardRange, connection: ConnectionOptions, until: float, now: float
    ) -> None:
        """Record at the end of a range that the shard should not be called before `until`."""
        with self._lock:
            if len(self._next_calls) >= _MAX_REMEMBERED:
                self._next_calls = {
                    key: time for key, time in self._next_calls.items() if time > now
                }
            self._next_calls[_stream_key(range_, connection), range_.shard] = until


PROCESS_WIDE_RATES = ReadRates()
"""Executors keep their worker process, and this with it, from task to task."""


def _stream_key(range_: ShardRange, connection: ConnectionOptions) -> _StreamKey:
    stream = range_.stream
    return connection.endpoint_url, connection.region, stream.name, stream.arn
