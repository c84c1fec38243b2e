"""Signals a query, on its driver's machine, to give back its shards before it is stopped.

Two files in a folder of one reader: `asked`, which the requester makes, and `drained`, which the
reader makes once it holds no lease. Without a request there are no files. The folder belongs to the
user, so no other user can make a request. It is named after the reader's token: a stale file
affects neither another query of the same worker id nor this one after a restart.
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

from ssp_common.errors import AccessError
from ssp_common.private_folder import check_private, make_private, private_folder

_log = logging.getLogger(f"spark_ssp.{__name__}")

_REQUESTED: Final = "asked"
_DRAINED: Final = "drained"
_TRIES: Final = 10


def new_token() -> str:
    """Return a token that identifies one reader."""
    return str(uuid.uuid4())


class DrainSignal:
    """The signal of the reader with this token. Cheap to make and to check."""

    def __init__(self, token: str, *, folder: Path | None = None) -> None:
        base = folder or private_folder()
        self.token: Final = token
        self._base = base
        self._folder = base / hashlib.sha256(token.encode()).hexdigest()[:32]
        self._warned = False

    def request(self) -> None:
        """Request a drain. Raises AccessError if other users can access the folder."""
        for left in reversed(range(_TRIES)):
            try:
                for folder in (self._base, self._folder):
                    make_private(folder)
                (self._folder / _REQUESTED).touch(mode=0o600)
                return
            except FileNotFoundError:  # another `clear` has just removed the empty base
                if not left:
                    raise

    def is_requested(self) -> bool:
        """Return whether this user requested a drain.

        Never raises: another user can make the folder before this one does. That is logged once.
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
        """Confirm that no lease is held. No effect without a pending request."""
        if self.is_requested():
            with suppress(FileNotFoundError):
                (self._folder / _DRAINED).touch(mode=0o600)

    def is_drained(self) -> bool:
        """Return whether the reader has confirmed. Called by the requester."""
        return os.path.lexists(self._folder / _DRAINED)

    def clear(self) -> None:
        """Remove the files, and the folder of all signals if it is empty."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):  # other signals exist, or it does not exist
            self._base.rmdir()
