"""The memory of a process about the streams that its tasks write to: descriptions, for a minute,
and the rates that the tasks have learned."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.client.api import KinesisWriter
from spark_ssp.kinesis_source.model.shard import Shard, StreamDescription, StreamRef
from spark_ssp.kinesis_source.options.values import ConnectionOptions
from spark_ssp.kinesis_source.sink.aggregation import unsupported_aggregates
from spark_ssp.kinesis_source.sink.columns import RecordLimits
from spark_ssp.kinesis_source.sink.pacing import LinkWindow, ShardPacer

_DESCRIPTION_KEPT_S: Final = 60.0
"""The service allows 20 descriptions a second for all streams of an account, and each executor
process describes a stream by itself."""
_MAX_TARGETS: Final = 4_096
"""Beyond it, streams are described again for each task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A stream to write to, and its shards when it was described."""

    stream: StreamRef
    description: StreamDescription
    shards: tuple[Shard, ...]

    @property
    def is_placed_by_key(self) -> bool:
        """True if the shards of records are predicted from their keys. Also if it is not known: by
        default keys decide, and a wrong prediction only affects the pace of records."""
        return self.description.placed_by_key is not False

    @property
    def limits(self) -> RecordLimits:
        """The rules for its records."""
        return RecordLimits(
            max_bytes=self.description.max_record_bytes,
            needs_key=self.is_placed_by_key,
        )

    def check_aggregation(self) -> None:
        """Raise UnsupportedError if readers could not tell the rows of aggregates apart."""
        if not self.is_placed_by_key:
            raise unsupported_aggregates(
                self.stream.name,
                "the record distribution strategy AUTO, or one that this release does not know",
            )


@dataclass(slots=True)
class TargetCache:
    """The targets that this process has described lately; thread-safe."""

    monotonic: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _kept: dict[tuple[ConnectionOptions, StreamRef], tuple[float, Target]] = field(
        default_factory=dict
    )

    def get(
        self,
        stream: StreamRef,
        connection: ConnectionOptions,
        service: KinesisWriter,
        *,
        within: float | None = None,
    ) -> Target:
        """Return the target, described within the last minute. `within`: the seconds for which
        throttling of each call is waited out. Raises the errors of `KinesisService.describe`."""
        place = (connection, stream)
        with self._lock:
            described, target = self._kept.get(place, (0.0, None))
            if target is not None and self.monotonic() - described < _DESCRIPTION_KEPT_S:
                return target
            target = Target(
                stream=stream,
                description=service.describe(stream, within=within),
                shards=service.list_shards(stream, within=within),
            )
            self._kept.pop(place, None)
            self._kept[place] = (self.monotonic(), target)
            if len(self._kept) > _MAX_TARGETS:
                del self._kept[next(iter(self._kept))]
        return target


TARGETS = TargetCache()
"""The cache of this process: Spark keeps its worker processes from task to task."""


_RATES_KEPT_S: Final = 600.0
_MAX_RATES_KEPT: Final = 1_000
"""Streams whose pacers are kept, each for `_RATES_KEPT_S` after its last task."""

_Pacers = Mapping[ShardId, ShardPacer]


@dataclass(slots=True)
class LearnedRates:
    """The last window of each connection, and the pacers of the shards of each stream; thread-safe.
    Times are in seconds of a monotonic clock."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _windows: dict[ConnectionOptions, LinkWindow] = field(default_factory=dict)
    _pacers: dict[tuple[ConnectionOptions, StreamRef], tuple[float, _Pacers]] = field(
        default_factory=dict
    )

    def window(self, connection: ConnectionOptions) -> LinkWindow:
        """Return the window that a task begins with."""
        with self._lock:
            return self._windows.get(connection, LinkWindow())

    def keep_window(self, connection: ConnectionOptions, window: LinkWindow) -> None:
        """Keep the window of a task that ends."""
        with self._lock:
            self._windows[connection] = window

    def take_pacers(self, connection: ConnectionOptions, stream: StreamRef, now: float) -> _Pacers:
        """Return the pacers that a task begins with, for it alone until it keeps them."""
        with self._lock:
            kept_at, pacers = self._pacers.pop((connection, stream), (now, {}))
        if now - kept_at > _RATES_KEPT_S:
            return {}
        for pacer in pacers.values():
            pacer.rest(now - kept_at)
        return pacers

    def keep_pacers(
        self, connection: ConnectionOptions, stream: StreamRef, pacers: _Pacers, now: float
    ) -> None:
        """Keep the pacers of a task that ends."""
        with self._lock:
            self._pacers[connection, stream] = (now, pacers)
            if len(self._pacers) > _MAX_RATES_KEPT:
                del self._pacers[next(iter(self._pacers))]


LEARNED_RATES: Final = LearnedRates()
"""Those of this process: Spark keeps its worker processes from task to task."""
