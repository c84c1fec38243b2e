"""How a query is asked, on its driver's machine, to give back its shards before it is stopped.

Two marks in a folder of one reader: `asked`, which whoever asks makes, and `drained`, which the
reader makes once nothing is held any more. Nothing is there unless somebody asks. The folder is the
user's own, so nobody else's word counts. It is named after the reader's token: a mark that was left
behind concerns neither another query of the same worker id nor this one once it is started again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from kinesis_source.leases.private_folder import check_private, make_private, private_folder
from ssp_common.errors import AccessError

_log = logging.getLogger(f"spark_ssp.{__name__}")

_REQUESTED: Final = "asked"
_DRAINED: Final = "drained"
_TRIES: Final = 10


def new_token() -> str:
    """What one reader, and no other, is asked by."""
    return str(uuid.uuid4())


class DrainSignal:
    """The marks of the reader with this token. Cheap to make and to look at."""

    def __init__(self, token: str, *, folder: Path | None = None) -> None:
        base = folder or private_folder()
        self.token: Final = token
        self._base = base
        self._folder = base / hashlib.sha256(token.encode()).hexdigest()[:32]
        self._warned = False

    def request(self) -> None:
        """Ask the reader to drain. Raises AccessError where the folder is not this user's alone."""
        for left in reversed(range(_TRIES)):
            try:
                for folder in (self._base, self._folder):
                    make_private(folder)
                (self._folder / _REQUESTED).touch(mode=0o600)
                return
            except FileNotFoundError:  # somebody else's `clear` has just removed the empty base
                if not left:
                    raise

    def is_requested(self) -> bool:
        """Whether the reader was asked to drain, by this user.

        Never raises: anybody can make the folder before this user does. That is told once.
        """
        try:
            check_private(self._base)
        except FileNotFoundError:
            return False
        except (AccessError, OSError) as error:
            if not self._warned:
                _log.warning("this query cannot be stopped gracefully: %s", error)
            self._warned = True
            return False
        return os.path.lexists(self._folder / _REQUESTED)

    def confirm(self) -> None:
        """Say that nothing is held any more. No effect when nobody asks any longer."""
        if self.is_requested():
            with suppress(FileNotFoundError):
                (self._folder / _DRAINED).touch(mode=0o600)

    def is_drained(self) -> bool:
        """Whether the reader has said so. Asked by who has asked it."""
        return os.path.lexists(self._folder / _DRAINED)

    def clear(self) -> None:
        """Remove the marks, and the folder of all marks when it is empty."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):  # others are asked, or it is not there
            self._base.rmdir()
