"""The state of the link as the tasks of this process have learned it, from task to task."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

from kinesis_source.options.values import ConnectionOptions
from kinesis_source.sink.link_window import LinkWindow


@dataclass(slots=True)
class LearnedRates:
    """The last window of each connection; thread-safe."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _windows: dict[ConnectionOptions, LinkWindow] = field(default_factory=dict)

    def window(self, connection: ConnectionOptions) -> LinkWindow:
        """Return the window that a task begins with."""
        with self._lock:
            return self._windows.get(connection, LinkWindow())

    def keep_window(self, connection: ConnectionOptions, window: LinkWindow) -> None:
        """Keep the window of a task that ends."""
        with self._lock:
            self._windows[connection] = window


PROCESS_WIDE: Final = LearnedRates()
"""That of this process: Spark keeps its worker processes from task to task."""
