"""What librdkafka says of itself, in Python's log instead of on the standard error.

librdkafka connects again by itself, so what it calls an error is a warning here; whatever comes of
it for a query is told by the call that fails. It says the same with every try, ten times a second
while a broker is away: here it is said once in a while, with a count.
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
_MOST_KINDS: Final = 1_000

_VARYING: Final = re.compile(
    r"\(after [^)]*\)|\d+ms|#(?:producer|consumer)-\d+|(?<![\w.:])\d+(?![\w.:])"
)
"""What differs between two lines that say the same: durations, counts, the client's number."""


class ClientLog:
    """What a client takes as its `logger`. Thread-safe.

    Lines that somebody asked for by kafka.debug all pass, on the level DEBUG.
    """

    def __init__(
        self,
        name: str,
        *,
        secrets: Collection[str] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name` is the last part of the logger's. `secrets` never show."""
        self._logger = logging.getLogger(f"spark_ssp.kafka_source.{name}")
        self._secrets = tuple(secrets)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._logged_at: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}

    def log(self, level: int, text: str, *values: object) -> None:
        """One line of librdkafka."""
        line = redact(text % values if values else text, self._secrets)
        if level <= logging.DEBUG:
            self._logger.debug("%s", line)
            return
        more = self._due(_VARYING.sub("", line))
        if more is None:
            return
        if more:
            line += f" (and {more} such lines since this was told last)"
        self._logger.log(min(level, logging.WARNING), "%s", line)

    def _due(self, kind: str) -> int | None:
        """None: not now. Otherwise how many of the kind were not told."""
        now = self._monotonic()
        with self._lock:
            last = self._logged_at.get(kind)
            if last is not None and now - last < _PERIOD_S:
                self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
                return None
            if len(self._logged_at) >= _MOST_KINDS:
                self._logged_at.clear()
                self._suppressed.clear()
            self._logged_at[kind] = now
            return self._suppressed.pop(kind, 0)
