"""Locks a file in this user's private folder: shared or exclusive among the processes of a machine.

The system frees a lock when its process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import suppress
from pathlib import Path

from spark_ssp.common.private_folder import make_private, private_folder


class FileLock:
    """A lock by its key. It cannot be pickled."""

    def __init__(self, *key: str, suffix: str, folder: Path | None = None) -> None:
        self._folder = private_folder() if folder is None else folder
        digest = hashlib.sha256(repr(key).encode()).hexdigest()[:32]
        self._path = self._folder / f"{digest}.{suffix}"
        self._handle: int | None = None

    def acquire(self, *, shared: bool = False) -> bool:
        """Return whether the lock was free, at least to share it. Does not wait.

        Raises AccessError or OSError if the folder cannot be used.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            make_private(self._folder)
            handle = os.open(self._path, flags, 0o600)
        except FileNotFoundError:  # another process has just removed the empty folder
            return False
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), self._path.lstat()):
                self._handle = handle
                return True
        except (BlockingIOError, FileNotFoundError):  # held, or removed by its last holder
            pass
        os.close(handle)
        return False

    def make_exclusive(self) -> bool:
        """Return whether no other process shares the lock. If one does, this lock is free."""
        if self._handle is None:
            return False
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._handle)
            self._handle = None
            return False
        return True

    def release(self) -> None:
        """Free the lock, and remove its file if no other process has it."""
        if self._handle is None or not self.make_exclusive():
            return
        with suppress(OSError):
            self._path.unlink()
        os.close(self._handle)
        self._handle = None
        with suppress(OSError):  # other locks exist
            self._folder.rmdir()
