"""Shows log lines of Spark's Python processes.

Spark starts Python processes for a source, on the driver and on executors, in which `logging` is
not configured: anything below WARNING would be lost. Their standard error goes to the standard
error of the driver or executor, beside Spark's own log.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from ssp_common.errors import printable

LEVEL_VARIABLE = "SPARK_SSP_LOG_LEVEL"
"""Environment variable with the log level: DEBUG, INFO (the default), WARNING or ERROR."""
ROOT = "spark_ssp"


def show_logs() -> None:
    """Show this project's lines, unless the process has set up logging itself. Idempotent."""
    logger = logging.getLogger(ROOT)
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    level = os.environ.get(LEVEL_VARIABLE, "INFO").upper()
    known = level in logging.getLevelNamesMapping()
    logger.setLevel(level if known else "INFO")
    if not known:
        logger.warning("unknown log level in %s, using INFO", LEVEL_VARIABLE)


class _OneLine(logging.Formatter):
    """Escapes control characters in messages: foreign names must not forge a line."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)


def abbreviate(names: Sequence[str], most: int = 10) -> str:
    """Join names for a log line, abbreviated beyond `most`."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
