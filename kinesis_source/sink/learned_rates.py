"""The rates that the tasks of this process have learned, from task to task."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.model.shard import StreamRef
from spark_ssp.kinesis_source.options.values import ConnectionOptions
from spark_ssp.kinesis_source.sink.link_window import LinkWindow
from spark_ssp.kinesis_source.sink.pacing import ShardPacer

_KEPT_S: Final = 600.0
_MAX_KEPT: Final = 1_000
"""Streams whose pacers are kept, each for `_KEPT_S` after its last task."""

_Pacers = Mapping[ShardId, ShardPacer]


@dataclass(slots=True)
class LearnedRates:
    """The last window of each connection, and the pacers of the shards of each stream; thread-safe.

    Times are in seconds of a monotonic clock.
    """

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
        if now - kept_at > _KEPT_S:
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
            if len(self._pacers) > _MAX_KEPT:
                del self._pacers[next(iter(self._pacers))]


PROCESS_WIDE: Final = LearnedRates()
"""Those of this process: Spark keeps its worker processes from task to task."""
