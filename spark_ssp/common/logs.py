"""Shows log lines of Spark's Python processes.

Spark starts Python processes for a source, on the driver and on executors, in which `logging` is
not configured: anything below WARNING would be lost. Their standard error goes to the standard
error of the driver or executor, beside Spark's own log.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from spark_ssp.common import __version__
from spark_ssp.common.errors import printable
from spark_ssp.common.times import Quantity

LEVEL_VARIABLE = "SPARK_SSP_LOG_LEVEL"
"""Environment variable with the log level: DEBUG, INFO (the default), WARNING or ERROR."""
ROOT = "spark_ssp"
_LAYOUT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
REPEAT_S: Final = 30.0
_MOST_KINDS: Final = 1_000


def show_logs(layout: str = _LAYOUT, *, default: str = "INFO") -> None:
    """Show this project's lines from a level on, that of the environment variable or `default`,
    unless the process has set up logging itself. Idempotent."""
    logger = logging.getLogger(ROOT)
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine(layout))
    handler.addFilter(RepeatFilter())
    logger.addHandler(handler)
    logger.propagate = False
    level = os.environ.get(LEVEL_VARIABLE, default).upper()
    known = level in logging.getLevelNamesMapping()
    logger.setLevel(level if known else default)
    if not known:
        logger.warning("unknown log level in %s, using %s", LEVEL_VARIABLE, default)


def hide_logs() -> None:
    """Show no further lines."""
    logging.getLogger(ROOT).setLevel(logging.CRITICAL + 1)


class Detail(str):
    """An argument of a line that does not make it another kind of line, as a number does not: the
    shard of a retry, the text of an error."""

    __slots__ = ()


class RepeatFilter:
    """Passes a warning once per period, with the number of equal ones since. Warnings that differ
    only in numbers, also those of a `Quantity`, and in details are equal. So are lines of other
    levels with a `Detail`. Thread-safe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._logged: dict[tuple[object, ...], tuple[float, int]] = {}
        """The time of the last line of a kind, and the lines suppressed since."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record. Implements the filter of a handler."""
        args = record.args if isinstance(record.args, tuple) else (record.args,)
        if record.levelno != logging.WARNING and not any(isinstance(a, Detail) for a in args):
            return True
        named = (str(a) for a in args if not isinstance(a, int | float | Quantity | Detail))
        kind = (record.name, record.levelno, record.msg, *named)
        now = self._monotonic()
        with self._lock:
            at, more = self._logged.get(kind, (-REPEAT_S, 0))
            if now - at < REPEAT_S:
                self._logged[kind] = (at, more + 1)
                return False
            if len(self._logged) >= _MOST_KINDS:
                self._logged.clear()
            self._logged[kind] = (now, 0)
        if more:
            record.msg = f"{record.getMessage()} (and {more} such lines since the last one)"
            record.args = None
        return True


class _OneLine(logging.Formatter):
    """Escapes control characters in messages: foreign names must not forge a line."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)


def abbreviate(names: Sequence[str], most: int = 10) -> str:
    """Join names for a log line or an error, abbreviated beyond `most`."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def versions() -> str:
    """Return the versions of this project, PySpark and Python, for a log line."""
    # Imported already where there is a query; a platform's has no metadata.
    pyspark = getattr(sys.modules.get("pyspark"), "__version__", "not loaded")
    return f"spark-ssp {__version__}, PySpark {pyspark}, Python {platform.python_version()}"
