"""The processes of one machine: this user's private folder for the temporary files that they share,
locks of files in it, shared or exclusive, and helpers.

The system frees a lock when its process ends, however it ends.

A helper is a Python process beside a reader, which may outlive it. It runs this Python with this
`sys.path`, in its own session: it receives no signals of the driver's terminal. Its input, which
may contain credentials, is passed only through its standard input.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from spark_ssp.common.errors import AccessError


def private_folder() -> Path:
    """Return its path below TMPDIR; it need not exist."""
    return Path(tempfile.gettempdir()) / f"spark-ssp-{os.getuid()}"


def make_private(folder: Path) -> None:
    """Create the folder if needed. Raises the errors of `check_private`."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    check_private(folder)


def check_private(folder: Path) -> None:
    """Raise AccessError if other users have access, FileNotFoundError if the folder does not
    exist."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise AccessError(
            f"folder {folder}",
            found="a folder to which other users have access",
            expected=f"a folder of user {os.getuid()} with mode 700",
            next_step="remove it, or set TMPDIR for the driver to a folder that only this user may "
            "use",
        )


class FileLock:
    """A lock by its key. It cannot be pickled."""

    def __init__(self, *key: str, suffix: str, folder: Path | None = None) -> None:
        self._folder = private_folder() if folder is None else folder
        digest = hashlib.sha256(repr(key).encode()).hexdigest()[:32]
        self._path = self._folder / f"{digest}.{suffix}"
        self._handle: int | None = None

    def acquire(self, *, shared: bool = False) -> bool:
        """Return whether the lock was free, at least to share it. Does not wait. Raises AccessError
        or OSError if the folder cannot be used."""
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


# --- Helpers --------------------------------------------------------------------------------------


def start_helper(module: str) -> subprocess.Popen[bytes]:
    """Start a process that waits for `module_path()`, then calls `main` of the module, which reads
    the rest of its standard input."""
    program = (
        "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
        f"from {module} import main; main()"
    )
    # -P: nothing is imported from the working directory before `sys.path` is received.
    return subprocess.Popen(
        [sys.executable, "-P", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )


def module_path() -> bytes:
    """Return the first input of a process: this process's `sys.path`."""
    return pickle.dumps([os.path.abspath(entry or os.curdir) for entry in sys.path])
