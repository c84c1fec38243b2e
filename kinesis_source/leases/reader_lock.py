"""Ensures that each worker has only one reader among the readers of one driver.

Spark makes a reader for each use of a DataFrame in a query, so a self-join has two. With leases
they would be two workers that divide the shards, and the join would miss most rows. Spark passes a
Python source neither the query nor its checkpoint. So readers of one driver that share a lease
table need different values of `workerId`; others are refused.

Each reader has a process, and Spark's driver is the parent of all of them. A reader locks a file;
the system frees the lock when the process ends, however it ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ssp_common.errors import AccessError
from ssp_common.file_lock import FileLock

_log = logging.getLogger(f"spark_ssp.{__name__}")

PATIENCE_S: Final = 10.0
"""The time that the process of a stopped query may take to end before the next one is refused."""
_POLL_S: Final = 0.1


class ReaderLock:
    """The lock of one reader. It cannot be pickled."""

    def __init__(self, *key: str, folder: Path | None = None) -> None:
        """`key`: unique among the readers of the driver."""
        self._lock = FileLock(*key, suffix="lock", folder=folder)

    def acquire(self, *, monotonic: Callable[[], float], sleep: Callable[[float], None]) -> bool:
        """Return whether the key was free, at the latest after `PATIENCE_S`.

        True with a warning if the folder cannot be used: then there is no check.
        """
        deadline = monotonic() + PATIENCE_S
        try:
            while not self._lock.acquire():
                if monotonic() >= deadline:
                    return False
                sleep(_POLL_S)
        except (AccessError, OSError) as error:
            _log.warning("a self-join of a DataFrame with leases cannot be detected: %s", error)
        return True

    def release(self) -> None:
        """Free the lock and remove its file."""
        self._lock.release()
