"""The status of a stream reader (lag, drain token, counts), in the progress or in a file, and the
statuses of a running query.

Before PySpark 4.2 Spark does not call `reportLatestOffset`. So a reader writes its status to a file
on the driver's machine, with digests of its newest end offsets, and a batch read that is planned on
that machine, and never run, returns the statuses as the name of a column:

    spark.read.format("kinesis-ssp").option("statusOf", digests).load().columns

A user knows a source's end offset from the progress, also through Spark Connect. Readers of equal
end offsets are equally far, so they have the same lag; with leases they have no shard in common. A
reader that was there some batches ago is another query's that is ahead, if there is a nearer one.

A report is of a batch before the one that runs. The lag after the latter is smaller by its records,
which nobody has committed: so a file has a status for each of the recent end offsets.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import json
import logging
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_ssp.common.errors import AccessError
from spark_ssp.common.local_processes import check_private, make_private, private_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

STATUS_OF: Final = "statusOf"
"""The option of such a read: digests of end offsets, separated by commas."""

_RECENT: Final = 8
"""End offsets by which a reader is found: a progress report is older than the batch that runs."""

_FOLDER: Final = "statuses"
"""Another one than that of 0.1.0, whose files have another form: its queries may run on the same
machine."""

_log = logging.getLogger(__name__)


Status = dict[str, Any]
"""The JSON document that a reader of this package reports: in the progress under `latestOffset`."""


class ReaderStatus(NamedTuple):
    """The statuses of one reader that was found by an end offset."""

    newest: Status
    """After the batch planned last."""
    at_end: Status
    """After the batch with that end offset."""


_MARKS: Final = ("maxMillisBehindLatest", "maxOffsetsBehindLatest")


def parsed(offset: Any) -> Any:
    """Return an offset of a progress report: JSON text or a parsed document; before PySpark 4.2 the
    text of a Python value. The offset of a source of another package may be any text."""
    if not isinstance(offset, str):
        return offset
    for parse in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return parse(offset)
    return offset


def is_status(document: Any) -> bool:
    """Return whether a document is a status: a Kinesis source's has an entry for each stream."""
    if not isinstance(document, dict):
        return False
    return any(mark in entry for entry in _entries(document) for mark in _MARKS)


def _entries(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [document, *(one for one in document.values() if isinstance(one, dict))]


def lacks_status(source: Mapping[str, Any]) -> bool:
    """Return whether a source's part of a progress report repeats the end offset where a status
    could be, as before PySpark 4.2."""
    end = parsed(source["endOffset"])
    return isinstance(end, dict) and parsed(source["latestOffset"]) == end


def status_in(source: Mapping[str, Any]) -> Status | None:
    """Return the status in a source's part of a progress report; None if it contains none."""
    document = parsed(source["latestOffset"])
    return document if is_status(document) else None


COUNTERS = "counters"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderCounters:
    """Cumulative counts of a stream reader on the driver, as its status shows them under
    `counters`, without those that are None. They start at 0 with each run of a query. Of a source
    with several streams each stream's entry shows the same counts: those of the reader."""

    retries: int
    """Calls of the driver that failed and were made again, throttled ones included."""
    throttles: int | None = None
    """Of these, the calls that a service refused because of their rate."""
    reshards: int
    """Splits and merges whose shards the reader went on to read; of Kafka, expansions of topics."""
    data_loss_warnings: int
    """Losses found by the driver that `failOnDataLoss=false` tolerated."""
    agent_restarts: int | None = None
    """Processes of the lease agent that were replaced; None without leases."""

    def document(self) -> dict[str, int]:
        """Return the counts as JSON."""
        counts = {
            "retries": self.retries,
            "throttles": self.throttles,
            "reshards": self.reshards,
            "dataLossWarnings": self.data_loss_warnings,
            "agentRestarts": self.agent_restarts,
        }
        return {name: count for name, count in counts.items() if count is not None}


# --- Files of readers ----------------------------------------------------------------------------


def digest(offset: Any) -> str:
    """Return the digest of an offset, regardless of the order of its keys."""
    return hashlib.sha256(json.dumps(offset, sort_keys=True).encode()).hexdigest()[:32]


class StatusFile:
    """The file of one reader. The system frees its lock when the process ends, however it ends: the
    file is then stale, and the next reader or user removes it."""

    def __init__(self, *, folder: Path | None = None) -> None:
        self._base = folder or private_folder()
        self._folder = self._base / _FOLDER
        self._path = self._folder / f"{uuid.uuid4().hex}.json"
        self._lock: int | None = None
        self._recent: dict[str, Status] = {}
        self._warned = False

    def publish(self, end: Any, status: Status) -> None:
        """Write the status after `end` was planned. Never raises: a failure is logged once."""
        newest = digest(end)
        self._recent.pop(newest, None)
        self._recent[newest] = status
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
        content = list(self._recent.items())
        try:
            if self._lock is None:
                self._create()
            fresh = _part_path(self._path)
            fresh.write_text(json.dumps(content), encoding="utf-8")
            fresh.replace(self._path)
        except (AccessError, OSError) as error:
            if not self._warned:
                _log.warning("the lag of this query cannot be queried: %s", error)
            self._warned = True

    def remove(self) -> None:
        """Remove the file, if there is one. Never raises: a file that remains is stale."""
        if self._lock is not None:
            with suppress(OSError):
                _remove(self._path)
            os.close(self._lock)
            self._lock = None

    def _create(self) -> None:
        for folder in (self._base, self._folder):
            make_private(folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(_lock_path(self._path), flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a file system without locks
            os.close(lock)
            _remove(self._path)
            raise
        self._lock = lock
        for _ in _live_files(self._folder):
            pass  # removes stale ones, but not the folder, which now contains this reader's


def find_statuses(options: Mapping[str, str], *, folder: Path | None = None) -> str | None:
    """Return the statuses that a batch read requests by its options, as JSON: for each digest the
    list of its readers as pairs, `ReaderStatus`, the reader with the fewest newer end offsets
    first, and among equals that with the largest lag. None if it requests none. Raises AccessError
    if other users can access the folder of the files."""
    wanted = {name.lower(): value for name, value in options.items()}.get(STATUS_OF.lower())
    if wanted is None:
        return None
    found: dict[str, list[tuple[int, int, ReaderStatus]]] = {one: [] for one in wanted.split(",")}
    for recent in _contents(folder or private_folder()):
        _, newest = recent[-1]
        for newer, (end, status) in enumerate(reversed(recent)):
            if end in found:
                found[end].append((newer, -_lag(newest), ReaderStatus(newest, status)))
    ordered = {end: sorted(each, key=itemgetter(0, 1)) for end, each in found.items()}
    return json.dumps([[each[2] for each in ordered[one]] for one in wanted.split(",")])


def _lag(status: Status) -> int:
    """Return the largest lag of a status; -1 if none is known."""
    lags = [each.get(mark) for each in _entries(status) for mark in _MARKS]
    return max((lag for lag in lags if isinstance(lag, int)), default=-1)


def status_request(ends: Sequence[Any]) -> str:
    """Return the value of the option `statusOf` for the end offsets of sources."""
    return ",".join(map(digest, ends))


def _contents(base: Path) -> Iterator[list[tuple[str, Status]]]:
    """Yield for each reader its recent end offsets with their statuses, the newest last."""
    folder = base / _FOLDER
    try:
        check_private(base)
        check_private(folder)
    except FileNotFoundError:
        return
    for path in _live_files(folder):
        with suppress(FileNotFoundError):  # its reader has just ended
            yield json.loads(path.read_text(encoding="utf-8"))


def _live_files(folder: Path) -> Iterator[Path]:
    """Yield the files of readers that run; remove those of readers that have ended."""
    for path in sorted(folder.glob("*.json")):
        try:
            lock = os.open(_lock_path(path), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue  # being removed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield path
        else:
            _remove(path)
        finally:
            os.close(lock)


def _remove(path: Path) -> None:
    for one in (path, _part_path(path), _lock_path(path)):
        one.unlink(missing_ok=True)
    with suppress(OSError):  # others exist
        path.parent.rmdir()


def _lock_path(path: Path) -> Path:
    return path.with_suffix(".lock")


def _part_path(path: Path) -> Path:
    return path.with_suffix(".part")


# --- Statuses of a running query ------------------------------------------------------------------


def query_lag(query: StreamingQuery, *, spark: SparkSession | None = None) -> list[Status | None]:
    """Return the lag of each source of a query after the batch planned last, in the order of
    `query.lastProgress["sources"]`.

    The lag of a source of this package is a dict, the same that Spark 4.2 and newer show in the
    progress under `latestOffset`: for `kinesis-ssp` by stream, for `kafka-ssp` under `topics`. It
    is None for a source of another package, and before a source has planned its first batch. The
    list is empty before the query's first progress report.

    Works through Spark Connect too; `spark` is needed only without an active session. Before
    PySpark 4.2 each call plans a batch read on the driver.
    """
    progress: Any = query.lastProgress
    if progress is None:
        return []
    found = source_statuses(session_of(query, spark), progress)
    return [each[0].newest if each else None for each in found]


def session_of(query: StreamingQuery, spark: SparkSession | None) -> SparkSession:
    """Return `spark`, else the query's session, else the active one."""
    from pyspark.sql import SparkSession

    return spark or getattr(query, "_session", None) or SparkSession.active()


def source_statuses(session: SparkSession, progress: Any) -> list[list[ReaderStatus]]:
    """Return the readers of each source of a progress report: normally one, none if it has not
    reported or is of another package, several if readers had equal end offsets: the nearest first,
    whose lag is the source's."""
    sources = progress["sources"]
    ends = [parsed(source["endOffset"]) for source in sources]
    latest = [parsed(source["latestOffset"]) for source in sources]
    known = [[ReaderStatus(one, one)] if is_status(one) else [] for one in latest]
    open_ends = [end for end, status in zip(ends, known, strict=True) if not status and end]
    # From PySpark 4.2 on a source that has reported nothing has no latest offset.
    if not open_ends or not any(one == end for one, end in zip(latest, ends, strict=True) if end):
        return known
    read = session.read.format("kinesis-ssp").option(STATUS_OF, status_request(open_ends))
    found = iter(json.loads(read.load().columns[0]))
    return [
        status or ([ReaderStatus(*one) for one in next(found)] if end else [])
        for end, status in zip(ends, known, strict=True)
    ]
