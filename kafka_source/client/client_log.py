"""Writes librdkafka's log lines to Python's log instead of standard error.

librdkafka reconnects by itself, so its errors are logged as warnings; the call that fails reports
the effect on a query. It repeats a line with every attempt, ten times a second while a broker is
unavailable: here each kind of line is logged once per period, with a count.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Collection
from typing import Final

from kafka_source.client.error_translation import redact

_PERIOD_S: Final = 30.0
_MAX_KINDS: Final = 1_000

_VARYING: Final = re.compile(
    r"\(after [^)]*\)|\d+ms|#(?:producer|consumer)-\d+|(?<![\w.:])\d+(?![\w.:])"
)
"""The varying parts of lines of one kind: durations, counts, and the client's number."""


class ClientLog:
    """The `logger` of a client. Thread-safe.

    Debug lines, which `kafka.debug` enables, and informational ones are all logged, on level DEBUG.
    """

    def __init__(
        self,
        name: str,
        *,
        secrets: Collection[str] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Log as `spark_ssp.kafka_source.NAME`. `secrets` are masked."""
        self._logger = logging.getLogger(f"spark_ssp.kafka_source.{name}")
        self._secrets = tuple(secrets)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._logged_at: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}

    def log(self, level: int, text: str, *values: object) -> None:
        """Log one line of librdkafka."""
        line = redact(text % values if values else text, self._secrets)
        if level <= logging.INFO:
            self._logger.debug("%s", line)
            return
        more = self._due(_VARYING.sub("", line))
        if more is None:
            return
        if more:
            line += f" (and {more} such lines since the last one)"
        self._logger.log(min(level, logging.WARNING), "%s", line)

    def _due(self, kind: str) -> int | None:
        """Return None if this kind of line was logged recently, else the number of lines
        suppressed."""
        now = self._monotonic()
        with self._lock:
            last = self._logged_at.get(kind)
            if last is not None and now - last < _PERIOD_S:
                self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
                return None
            if len(self._logged_at) >= _MAX_KINDS:
                self._logged_at.clear()
                self._suppressed.clear()
            self._logged_at[kind] = now
            return self._suppressed.pop(kind, 0)
