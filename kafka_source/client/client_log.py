"""Writes librdkafka's log lines to Python's log instead of standard error.

librdkafka reconnects by itself, so its errors are logged as warnings; the call that fails reports
the effect on a query. It repeats a line with every attempt, ten times a second while a broker is
unavailable: here all clients of a process together log each kind of line of each broker once per
period, with the number of lines suppressed.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from spark_ssp.kafka_source.client.error_translation import redact

PERIOD_S: Final = 60.0
_MAX_KINDS: Final = 1_000

_VARYING: Final = re.compile(
    r"\(after [^()]*(?:\(s\)[^()]*)?\)"  # the time, and the lines that librdkafka suppressed
    r"|/(?:bootstrap|\d+)(?=[\]: ])"  # a broker's node id, which is unknown at first
    r"|\[[^\[\]]*#(?:producer|consumer)-\d+\]|\d+ms|(?<![\w.:])\d+(?![\w.:])"
)
"""The varying parts of lines of one kind: durations, counts, and the client."""


@dataclass(slots=True)
class _Kind:
    """The lines of one kind: the last one that was logged, its time, and the number since."""

    logger: str
    level: int
    line: str
    logged_at: float
    suppressed: int = 0

    def summary(self) -> tuple[str, int, str]:
        return self.logger, self.level, f"{_times(self.suppressed)}: {self.line}"


@dataclass(slots=True, kw_only=True)
class LineLimiter:
    """Decides which lines are logged. Thread-safe."""

    monotonic: Callable[[], float] = time.monotonic
    _kinds: dict[tuple[str, str], _Kind] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def admit(self, logger: str, level: int, line: str) -> list[tuple[str, int, str]]:
        """Return the lines to log now, each with its logger and level: this one, unless one of its
        kind was logged recently, and the counts of suppressed lines of other kinds."""
        now = self.monotonic()
        key = (logger, _VARYING.sub("", line))
        with self._lock:
            known = self._kinds.pop(key, None)
            if known is not None and now - known.logged_at < PERIOD_S:
                known.suppressed += 1
                self._kinds[key] = known
                return self._summaries(now - PERIOD_S)
            admitted = self._summaries(now - PERIOD_S)
            if len(self._kinds) >= _MAX_KINDS:
                admitted += self._summaries(now)
            self._kinds[key] = _Kind(logger, level, line, now)
        if known is not None and known.suppressed:
            line += f" (and {_times(known.suppressed)} since the last one)"
        return [*admitted, (logger, level, line)]

    def drain(self) -> list[tuple[str, int, str]]:
        """Return the counts of all suppressed lines, and forget them."""
        with self._lock:
            return self._summaries(self.monotonic())

    def after_fork(self) -> None:
        """Start without lines, in a child process: another thread may have held the lock."""
        self._lock = threading.Lock()
        self._kinds = {}

    def _summaries(self, logged_before: float) -> list[tuple[str, int, str]]:
        """Remove the kinds last logged before a time, and return the counts of their lines."""
        old = [key for key, one in self._kinds.items() if one.logged_at <= logged_before]
        removed = [self._kinds.pop(key) for key in old]
        return [one.summary() for one in removed if one.suppressed]


def _times(count: int) -> str:
    return f"{count} more such line{'' if count == 1 else 's'}"


_OF_PROCESS: Final = LineLimiter()


class ClientLog:
    """The `logger` of a client. Thread-safe.

    Debug lines, which `kafka.debug` enables, and informational ones are all logged, on level DEBUG.
    """

    def __init__(
        self, name: str, *, secrets: Collection[str] = (), limiter: LineLimiter = _OF_PROCESS
    ) -> None:
        """Log as `spark_ssp.kafka_source.NAME`. `secrets` are masked."""
        self._logger = logging.getLogger(f"spark_ssp.kafka_source.{name}")
        self._secrets = tuple(secrets)
        self._limiter = limiter

    def log(self, level: int, text: str, *values: object) -> None:
        """Log one line of librdkafka."""
        line = redact(text % values if values else text, self._secrets)
        if level <= logging.INFO:
            self._logger.debug("%s", line)
            return
        _write(self._limiter.admit(self._logger.name, min(level, logging.WARNING), line))


def _write(lines: Iterable[tuple[str, int, str]]) -> None:
    for logger, level, line in lines:
        logging.getLogger(logger).log(level, "%s", line)


os.register_at_fork(after_in_child=_OF_PROCESS.after_fork)
atexit.register(lambda: _write(_OF_PROCESS.drain()))
