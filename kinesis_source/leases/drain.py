"""Drains a query: asks its reader, on the driver's machine, to give back its shards before it is
stopped.

The signal is two files in a folder of one reader: `asked`, which the requester makes, and
`drained`, which the reader makes once it holds no lease. Without a request there are no files. The
folder belongs to the user, so no other user can make a request. It is named after the reader's
token: a stale file affects neither another query of the same worker id nor this one after a
restart.

The command is a batch read that is planned on the driver and never run.

    spark.read.format("kinesis-ssp").option("drainToken", token).option("drainStep", "ask").load()

The token is the reader's, from the query's progress. The name of the frame's only column is the
reader's status. So it works on any machine, also through Spark Connect: Spark makes the
frame's schema in a Python process on the driver's machine, where the reader's signal files are.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

from spark_ssp.common.errors import AccessError, InvalidOptionsError, OptionProblem, shown
from spark_ssp.common.file_lock import check_private, make_private, private_folder

_log = logging.getLogger(__name__)

_REQUESTED: Final = "asked"
_DRAINED: Final = "drained"
_TRIES: Final = 10

DRAIN_TOKEN: Final = "drainToken"
"""The option, and the token's name in the query's progress."""
DRAIN_ACTION: Final = "drainStep"


# --- The signal ----------------------------------------------------------------------------------


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


# --- The command ---------------------------------------------------------------------------------


class DrainAction(StrEnum):
    """The action: request the drain (repeatable), or clear the request."""

    ASK = "ask"
    CLEAR = "clear"


class DrainStatus(StrEnum):
    """The status of a reader after the action."""

    DRAINING = "draining"
    DRAINED = "drained"
    CLEARED = "cleared"


def drain(options: Mapping[str, str]) -> DrainStatus | None:
    """Carry out the drain action of a batch read's options; None if they contain none.

    Raises InvalidOptionsError for an unknown action, and AccessError as `DrainSignal.request`.
    """
    folded = {name.lower(): value for name, value in options.items()}
    token = folded.get(DRAIN_TOKEN.lower())
    if token is None:
        return None
    marks = DrainSignal(token)
    match folded.get(DRAIN_ACTION.lower()):
        case DrainAction.ASK:
            marks.request()
            return DrainStatus.DRAINED if marks.is_drained() else DrainStatus.DRAINING
        case DrainAction.CLEAR:
            marks.clear()
            return DrainStatus.CLEARED
        case other:
            raise _unknown_action(other)


def _unknown_action(found: str | None) -> InvalidOptionsError:
    problem = OptionProblem(
        option=DRAIN_ACTION,
        found="nothing" if found is None else shown(found),
        expected=f"one of {', '.join(DrainAction)}",
        next_step="call spark_ssp.stop_gracefully, which sets it",
    )
    return InvalidOptionsError("kinesis-ssp", [problem])
