"""Stops a query between two batches, so that its next start and the next worker of its shards have
as little as possible to repeat. Before, the query is drained: its reader, on the driver's machine,
is asked to give back its shards.

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
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_ssp.common.errors import AccessError, InvalidOptionsError, OptionProblem, shown
from spark_ssp.common.local_processes import check_private, make_private, private_folder
from spark_ssp.common.spark.reader_status import ReaderStatus, parsed, session_of, source_statuses
from spark_ssp.kinesis_source.model.offset import is_offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

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


# --- The stop -------------------------------------------------------------------------------------

_POLL_S: Final = 0.2
_LONGEST_POLL_S: Final = 2.0
"""Spark plans a read for each poll, and the answer takes until the next trigger."""
_QUICK_POLL_S: Final = 0.05
"""While only the end of a batch is awaited."""


def stop_gracefully(
    query: StreamingQuery,
    *,
    spark: SparkSession | None = None,
    timeout: float = 300.0,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Let a query finish its batch and hand over its shards, then stop it.

    A plain stop ends the running batch, which the next start runs again: a sink that is not
    idempotent gets its rows twice. It also gives back the shards, but a batch that has just been
    finished may be known only to Spark, and the next worker reads it again. This function waits for
    the end of a batch, and first lets each of the query's Kinesis sources with leases write its
    committed checkpoints and give back all leases. That takes until the query's next trigger and a
    moment more, and one trigger longer for a query that has just started with a batch of the
    previous run. A query whose batches follow each other is stopped at the beginning of one, within
    a tenth of a second or so.

    For queries of any source. Works through Spark Connect too; `spark` is needed only without an
    active session. Returns True if the query was stopped after a batch, and all leases were given
    back. Returns False, with a warning, if that took longer than `timeout` seconds: then the query
    is stopped anyway, as by `query.stop()`. Also returns False if the query ended before or has
    failed: `query.exception()` then has the error, which is not raised here.
    """
    session = session_of(query, spark)
    deadline = monotonic() + timeout
    tokens: frozenset[str] = frozenset()
    reported = drained = stopped = False
    last: tuple[Any, ...] | None = None
    pause = _POLL_S
    try:
        while query.isActive and monotonic() < deadline:
            progress: Any = query.lastProgress
            if progress is not None and not drained:
                found = source_statuses(session, progress)
                reported = reported or _has_reported(progress, found)
                tokens |= _tokens(found)
                states = [_step(session, token, DrainAction.ASK) for token in sorted(tokens)]
                drained = reported and all(state == DrainStatus.DRAINED for state in states)
                if drained:
                    last, pause = _batch(progress), _QUICK_POLL_S
            if drained and (not query.status["isTriggerActive"] or _batch(progress) != last):
                stopped = True
                break
            sleep(max(0.0, min(pause, deadline - monotonic())))
            if tokens and not drained:
                pause = min(2 * pause, _LONGEST_POLL_S)
        stopped = stopped or (drained and not query.isActive)
        # Before it is stopped: Spark may turn that into an error.
        failed = not query.isActive and query.exception() is not None
    finally:
        with ExitStack() as ending:  # runs every callback even if one fails; the last one first
            for token in sorted(tokens, reverse=True):
                ending.callback(_step, session, token, DrainAction.CLEAR)
            ending.callback(query.stop)
    if failed:
        _log.warning("the query failed before it was stopped: see its exception()")
    elif not stopped:
        _log.warning("the query ended before its batch, or before it gave back its shards")
    return stopped and not failed


def _batch(progress: Any) -> tuple[Any, ...]:
    """Return the parts of a report that differ from one trigger to the next."""
    return progress["batchId"], progress["timestamp"]


def _has_reported(progress: Any, sources: Sequence[Sequence[ReaderStatus]]) -> bool:
    """Return whether all Kinesis readers have reported: after a batch that is replayed, which needs
    no planning, Spark has not called them yet. A source is recognized by its offset; its
    description is the same for all Python sources."""
    return all(
        found or not is_offset(parsed(source["endOffset"]))
        for source, found in zip(progress["sources"], sources, strict=True)
    )


def _tokens(sources: Iterable[Iterable[ReaderStatus]]) -> frozenset[str]:
    """Return the drain tokens of the readers of a query's sources. Readers with leases and equal
    end offsets hold no shard: to drain all of them affects no other query."""
    entries = [
        entry
        for readers in sources
        for reader in readers
        for entry in reader.newest.values()
        if isinstance(entry, dict)
    ]
    return frozenset(entry[DRAIN_TOKEN] for entry in entries if DRAIN_TOKEN in entry)


def _step(session: SparkSession, token: str, step: DrainAction) -> str:
    read = session.read.format("kinesis-ssp").option(DRAIN_TOKEN, token)
    return str(read.option(DRAIN_ACTION, step).load().columns[0])
