"""The folder for temporary files of this user that the processes of one machine share."""

from __future__ import annotations

import os
import stat
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
