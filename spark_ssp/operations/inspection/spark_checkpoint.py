"""Reads a Spark checkpoint: the log of planned batches and that of committed ones.

    metadata     {"id": "<query id>"}
    offsets/7    v1, a line of metadata, then a line for each source: its offset after batch 7
    commits/7    v1, a line of metadata: batch 7 is committed

A line `-` is a source without an offset. Spark plans a batch by writing its offsets, and restarts
at the newest of them: if it is not committed, the batch runs again, from the offsets one batch
earlier (`MicroBatchExecution.populateStartOffsets`). It reads those of both batches, and the newest
commit, in each start. Asynchronous progress tracking leaves batches out of both logs, and starts
from the last one before that it has (`AsyncProgressTrackingMicroBatchExecution`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

from spark_ssp.common.errors import ServiceUnavailableError, SspError, UnsupportedError
from spark_ssp.common.locations import shown_location
from spark_ssp.common.logs import abbreviate, count_of
from spark_ssp.kafka_source.model.offset import Offset as KafkaOffset
from spark_ssp.kafka_source.planning.spark_checkpoint import SparkOffset, decode_any
from spark_ssp.kinesis_source.model.offset import Offset as KinesisOffset
from spark_ssp.kinesis_source.model.offset import decode as decode_kinesis
from spark_ssp.kinesis_source.model.offset import is_offset
from spark_ssp.operations.inspection.checkpoint_folder import (
    RESTORE,
    CheckpointFolderError,
    DamagedFileError,
    Folder,
    Listing,
    damaged,
    location_below,
)

KINESIS = "kinesis-ssp"
KAFKA = "kafka-ssp"
SPARK_KAFKA = "kafka"
_VERSION: Final = re.compile(r"v[0-9]{1,9}")
_COMMITS: Final = ("v1", "v2", "v3")
"""A commit's metadata is not used here, and only that differs: with the ids of state stores from v2
on (`spark.sql.streaming.stateStore.checkpointFormatVersion`)."""
_LONGEST_ID: Final = 200
_NAMED_FILES: Final = 10
_METADATA: Final = "metadata"
_LOGS: Final = ("commits", "offsets")
_OF_TABLES: Final = frozenset({"_delta_log", "_spark_metadata"})
_READINGS: Final = 3
_DEPTH: Final = 3
"""The levels of a job, a pipeline and a stage."""
MAX_FOLDERS: Final = 1_000
SourceOffset = KinesisOffset | KafkaOffset | SparkOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedBatch:
    """One file of the offset log."""

    batch: int
    planned_ms: int | None
    """By the driver's clock, in milliseconds since the epoch."""
    offsets: tuple[str | None, ...]
    """By source, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source of the query, and its offsets; None without one, or of another package."""

    index: int
    format: str
    """The format's name; for another package, a description."""
    committed: SourceOffset | None = None
    """After the last committed batch."""
    planned: SourceOffset | None = None
    """After the batch that is planned and not committed."""

    @property
    def is_readable(self) -> bool:
        """Return whether this release can parse the offsets."""
        return self.format in (KINESIS, KAFKA, SPARK_KAFKA)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state of a query's checkpoint."""

    location: str
    """To show: without credentials."""
    query: str | None
    committed: int | None
    """The last committed batch."""
    planned: LoggedBatch | None
    """The batch that a restart runs again; None if the newest one is committed."""
    last: LoggedBatch | None
    """The log's entry of the last committed batch."""
    kept: tuple[int, ...]
    """The batches of the offset log, sorted."""
    sources: tuple[Source, ...]
    notes: tuple[str, ...] = ()


def read_checkpoint(folder: Folder, location: str) -> Checkpoint:
    """Read a checkpoint. Raises CheckpointFolderError if it is none or damaged, with the files to
    delete, UnsupportedError for another version of Spark's log, IncompatibleStateError for an
    offset of a later release, and ServiceUnavailableError if Spark deletes the files faster than
    they are read."""
    logs = _list_logs(folder)
    for _ in range(_READINGS):
        try:
            return _read_logs(folder, location, *logs)
        except SspError:
            before, logs = logs, _list_logs(folder)
            if logs == before:
                raise
    raise ServiceUnavailableError(
        f"checkpoint {shown_location(location)}",
        found="other batches each time that it was read",
        expected="files that are there until they are read",
        next_step="try again; let the query keep more batches (spark.sql.streaming."
        "minBatchesToRetain)",
    )


def _list_logs(folder: Folder) -> tuple[list[int], list[int]]:
    """Return the batches of the commits, then of the offsets, in the order in which they are
    listed: a running query writes the offsets of a batch before its commit."""
    commits, offsets = (batches_of(folder.listing(name).names) for name in _LOGS)
    return commits, offsets


def _read_logs(
    folder: Folder, location: str, commits: Sequence[int], offsets: Sequence[int]
) -> Checkpoint:
    root = folder.listing()
    if not offsets and not commits and _METADATA not in root.files:
        raise _foreign(location, root)
    query = query_id(folder, location) if _METADATA in root.files else None
    committed = commits[-1] if commits else None
    newest = offsets[-1] if offsets else None
    last = planned = None
    name = ""
    try:
        if committed is not None:
            name = f"commits/{committed}"
            read_commit(folder, location, committed)
            name = f"offsets/{committed}"
            if committed not in offsets:
                raise damaged(
                    location,
                    name,
                    f"no such file, while commits/{committed} exists",
                    "the offsets of the last committed batch",
                )
            last = read_batch(folder, location, committed)
        if newest is not None and newest != committed:
            name = f"offsets/{newest}"
            planned = read_batch(folder, location, newest)
            _check_count(location, last, planned)
        before = None if newest is None else batch_before(newest, offsets, commits)
        if before is not None and before != committed:
            name = f"offsets/{before}"
            if before not in offsets:
                raise damaged(
                    location,
                    name,
                    f"no such file, while offsets/{newest} exists",
                    "the offsets of the two newest batches, which a start reads unless progress is "
                    "tracked asynchronously",
                )
            read_batch(folder, location, before)
    except CheckpointFolderError as error:
        raise _with_recovery(error, folder, location, name, offsets, commits) from None
    return Checkpoint(
        location=shown_location(location),
        query=query,
        committed=committed,
        planned=planned,
        last=last,
        kept=tuple(offsets),
        sources=_sources(last, planned),
        notes=tuple(_notes(committed, newest, before)),
    )


def is_checkpoint(folder: Folder, root: Listing) -> bool:
    """Return whether a folder, of which `root` is the listing, is the checkpoint of a query. Other
    programs have files of the name `metadata`, too: of a query without a batch it names the id."""
    if any(batches_of(folder.listing(log).names) for log in _LOGS if log in root.folders):
        return True
    if _METADATA not in root.files:
        return False
    try:
        query_id(folder, "")
    except DamagedFileError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFolder:
    """A checkpoint, or a folder that could not be opened or searched, with the error."""

    location: str
    folder: Folder | SspError


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The contents of a folder."""

    found: tuple[FoundFolder, ...]
    """The checkpoints, sorted, and the folders that could not be searched. The folder itself if it
    is a checkpoint, or if nothing is found below it."""
    not_searched: tuple[str, ...] = ()
    """The locations of folders that were left out, and of links to folders."""


def find_checkpoints(folder: Folder, location: str) -> Search:
    """Look for checkpoints in a folder, three levels deep. Links are not followed. Folders are not
    entered that belong to a table, or seem to, unless their names begin with `_checkpoint`."""
    root = folder.listing()
    itself = FoundFolder(location=location, folder=folder)
    if is_checkpoint(folder, root):
        return Search(found=(itself,))
    found: list[FoundFolder] = []
    left_out: list[str] = []
    level = [("", root)]
    left = MAX_FOLDERS
    for _ in range(_DEPTH):
        below: list[tuple[str, Listing]] = []
        paths = [f"{path}{name}" for path, at in level for name in _entered(at)]
        left_out += [f"{path}{name}" for path, at in level for name in _left_out(at)]
        for path in paths[:left]:
            at_path = location_below(location, path)
            try:
                one = folder.below(path)
                listing = one.listing()
                if is_checkpoint(one, listing):
                    found.append(FoundFolder(location=at_path, folder=one))
                else:
                    below.append((f"{path}/", listing))
            except SspError as error:
                found.append(FoundFolder(location=at_path, folder=error))
        if len(paths) > left:
            found.append(FoundFolder(location=location, folder=_too_many(location)))
            break
        left -= len(paths)
        level = below
    else:
        left_out += [f"{path}{name}" for path, at in level for name in (*at.folders, *at.links)]
    return Search(
        found=tuple(sorted(found, key=lambda one: one.location)) or (itself,),
        not_searched=tuple(location_below(location, path) for path in sorted(left_out)),
    )


def _entered(at: Listing) -> list[str]:
    """Return the folders to search. Those of a table have its partitions as names, or begin so."""
    is_table = not _OF_TABLES.isdisjoint(at.folders)
    return [
        name
        for name in at.folders
        if name.startswith("_checkpoint")
        or not (is_table or name.startswith(("_", ".")) or "=" in name)
    ]


def _left_out(at: Listing) -> list[str]:
    entered = {*_entered(at), *_OF_TABLES}
    return [name for name in (*at.folders, *at.links) if name not in entered]


def _too_many(location: str) -> CheckpointFolderError:
    return CheckpointFolderError(
        f"folder {shown_location(location)}",
        found=f"more than {MAX_FOLDERS} folders, of which the first were searched",
        expected="a folder of checkpoints",
        next_step="name the checkpoints themselves, or a folder with fewer others",
    )


def batches_of(names: Iterable[str]) -> list[int]:
    """Return the batches of a log from the names of its files, sorted."""
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


def _foreign(location: str, root: Listing) -> CheckpointFolderError:
    if not _OF_TABLES.isdisjoint(root.folders):
        found = "a table, which a query writes"
    elif root.files or root.folders:
        found = "a folder without offsets, commits and metadata"
    else:
        found = "an empty folder"
    return CheckpointFolderError(
        f"checkpoint {shown_location(location)}",
        found=found,
        expected="the checkpoint of a Spark query: the folders offsets and commits",
        next_step="name the query's checkpointLocation itself",
    )


def query_id(folder: Folder, location: str) -> str:
    """Return the id in the file `metadata`."""
    try:
        found = json.loads(folder.read("metadata"))["id"]
        if isinstance(found, str) and len(found) <= _LONGEST_ID:
            return found
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise damaged(
        location,
        "metadata",
        "no query id",
        '{"id": "<query id>"}',
        "write it again, with the id in the query's log or progress: sinks know by it which "
        "batches they have",
    )


def _lines(
    content: bytes, location: str, name: str, versions: Sequence[str] = ("v1",)
) -> list[str]:
    """Return the lines after the version."""
    try:
        first, *lines = content.decode().split("\n")
    except UnicodeDecodeError:
        raise damaged(location, name, "bytes that are not UTF-8", "text") from None
    if first in versions:
        return lines
    if _VERSION.fullmatch(first):
        raise UnsupportedError(
            f"{name} of {shown_location(location)}",
            found=f"version {first} of Spark's log",
            expected=f"version {' or '.join(versions)}",
            next_step="delete nothing, and look for a release of spark-ssp that reads this version",
        )
    found = "another text than a version" if content else "an empty file"
    raise damaged(location, name, found, "version v1 of Spark's log in the first line")


def _metadata(line: str, location: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise damaged(location, name, "metadata that is not JSON", "an object")
    return found


def read_commit(folder: Folder, location: str, batch: int) -> None:
    """Check a file of the commit log. Its metadata may be left out."""
    name = f"commits/{batch}"
    lines = _lines(folder.read(name), location, name, _COMMITS)
    if lines and (lines[0] or len(lines) > 1):
        _metadata(lines[0], location, name)


def read_batch(folder: Folder, location: str, batch: int) -> LoggedBatch:
    """Read a file of the offset log."""
    name = f"offsets/{batch}"
    lines = _lines(folder.read(name), location, name)
    if not lines or not lines[0].strip():
        raise damaged(location, name, "no metadata", "a line of metadata after the version")
    planned = _metadata(lines[0], location, name).get("batchTimestampMs")
    offsets = [line for line in lines[1:] if line]
    cut = "a line that begins like JSON and is not, as in a file that was cut off"
    if any(line.startswith("{") and isinstance(parse_offset(line), str) for line in offsets):
        raise damaged(location, name, cut, "an offset of each source")
    if not offsets:
        raise damaged(location, name, "no offset, as in a file that was cut off", "one per source")
    return LoggedBatch(
        batch=batch,
        planned_ms=planned if type(planned) is int and planned > 0 else None,
        offsets=tuple(None if line == "-" else line for line in offsets),
    )


def read_kept_batch(folder: Folder, location: str, batch: int) -> LoggedBatch | None:
    """Read a file of the offset log; None if Spark has deleted it since it was listed."""
    try:
        return read_batch(folder, location, batch)
    except SspError:
        if batch in batches_of(folder.listing("offsets").names):
            raise
        return None


def _check_count(location: str, last: LoggedBatch | None, planned: LoggedBatch) -> None:
    if last is not None and len(planned.offsets) < len(last.offsets):
        raise damaged(
            location,
            f"offsets/{planned.batch}",
            f"{count_of(len(planned.offsets), 'offset')}, as in a file that was cut off",
            f"as many as in offsets/{last.batch}: {len(last.offsets)}",
        )


def batch_before(batch: int, offsets: Sequence[int], commits: Sequence[int]) -> int | None:
    """Return the batch from whose end a start runs a batch, None for the first one: the one before,
    or the last one in a log with gaps. A batch that is committed was not left out of the log."""
    earlier = [n for n in offsets if n < batch - 1]
    if earlier and batch - 1 not in (*offsets, *commits):
        return earlier[-1]
    return batch - 1 if batch else None


def _notes(committed: int | None, newest: int | None, before: int | None) -> Iterator[str]:
    first = -1 if committed is None else committed
    if newest is not None and newest > first + 1:
        yield (
            f"batches {first + 1} to {newest} are planned and none of them is committed: as with "
            f"asynchronous progress tracking. A restart runs batch {newest} again"
            + ("" if before is None else f", from the offsets of batch {before}")
        )
    elif newest is not None and before not in (None, newest - 1):
        yield (
            f"the batches between {before} and {newest} are not in the log: as with asynchronous "
            "progress tracking, without which a start fails"
        )


# --- Recovery from damaged files ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The end of a checkpoint that is intact, and the files after it, which have to be deleted."""

    batch: int
    is_committed: bool
    """True: a restart continues after the batch; False: it runs the batch again."""
    delete: tuple[str, ...]
    repeated: tuple[int, ...]
    """The batches that were committed, and whose records come again."""

    def __str__(self) -> str:
        files = abbreviate(self.delete, _NAMED_FILES)
        then = "continues after batch {}" if self.is_committed else "runs batch {} again"
        if not self.delete:
            return f"delete nothing: a restart {then.format(self.batch)}, without this file"
        sums = "its .crc file" if len(self.delete) == 1 else "their .crc files"
        text = f"delete {files} and {sums}: a restart {then.format(self.batch)}"
        if not self.repeated:
            return text
        batches = abbreviate([str(batch) for batch in self.repeated], _NAMED_FILES)
        more = _PLANNED_ANEW if max(self.repeated) > self.batch else ""
        return (
            f"restore the file from a backup; or {text}, and the records of batch {batches}, whose "
            f"rows were written, come again{more}"
        )


_PLANNED_ANEW: Final = (
    " with later ones, which a sink that knows its batches by number, such as Spark's file sink, "
    "leaves out: first take them out of the sink, or start another query there "
    "(--as-starting-position, after the deletion)"
)
"""A batch after the last intact one is not run as it was."""


def find_recovery(
    offsets: Sequence[int], commits: Sequence[int], is_intact: Callable[[str], bool]
) -> Recovery | None:
    """Return the newest state from which Spark can start: the offsets of a batch and of the one
    before it, which ended as this one was planned. None without one. `is_intact`: by file name."""
    for batch in reversed(offsets):
        if not is_intact(f"offsets/{batch}"):
            continue
        is_committed = batch in commits and is_intact(f"commits/{batch}")
        before = batch_before(batch, offsets, commits)
        if before is None or (before in offsets and is_intact(f"offsets/{before}")):
            undone = [n for n in commits if n > batch or (n == batch and not is_committed)]
            ended = takewhile(
                lambda n: not is_intact(f"commits/{n}"),
                reversed([n for n in commits if n not in undone]),
            )
            return Recovery(
                batch=batch,
                is_committed=is_committed,
                delete=(
                    *(f"offsets/{n}" for n in offsets if n > batch),
                    *(f"commits/{n}" for n in sorted((*ended, *undone))),
                ),
                repeated=tuple(undone),
            )
    return None


def _with_recovery(
    error: CheckpointFolderError,
    folder: Folder,
    location: str,
    bad: str,
    offsets: Sequence[int],
    commits: Sequence[int],
) -> DamagedFileError:
    def is_intact(name: str) -> bool:
        log, _, batch = name.partition("/")
        try:
            read = read_batch if log == "offsets" else read_commit
            read(folder, location, int(batch))
        except CheckpointFolderError:
            return False
        return name != bad

    recovery = find_recovery(offsets, commits, is_intact)
    return DamagedFileError(
        error.subject,
        found=error.found,
        expected=error.expected,
        next_step=f"{RESTORE}; no batch before it is intact" if recovery is None else str(recovery),
    )


# --- Sources --------------------------------------------------------------------------------------


def _sources(last: LoggedBatch | None, planned: LoggedBatch | None) -> tuple[Source, ...]:
    before = () if last is None else last.offsets
    after = () if planned is None else planned.offsets
    count = max(len(before), len(after))
    texts = [
        [entries[n] if n < len(entries) else None for n in range(count)]
        for entries in (before, after)
    ]
    return tuple(_source(n, one, other) for n, (one, other) in enumerate(zip(*texts, strict=True)))


def only_source(found: Checkpoint, number: int | None, *, own: bool = True) -> Source:
    """Return the source with this number, or the only one that can be read here; with `own` False,
    one of another package. Raises CheckpointFolderError."""
    candidates = [
        source
        for source in found.sources
        if (source.is_readable is own if number is None else source.index == number)
    ]
    if len(candidates) == 1 and candidates[0].is_readable is own:
        return candidates[0]
    if number is not None and candidates:
        described = candidates[0].format
    else:
        described = ", ".join(f"{source.index} ({source.format})" for source in found.sources)
    raise CheckpointFolderError(
        f"sources of {found.location}",
        found=described or "none",
        expected="one source of kinesis-ssp or kafka-ssp" if own else "one source of awslabs",
        next_step="name it by --source"
        if own
        else "name it by --source; leave --from out for kinesis-ssp and kafka-ssp",
    )


def _source(index: int, committed: str | None, planned: str | None) -> Source:
    documents = [parse_offset(text) for text in (committed, planned)]
    known = [format_of(document) for document in documents if document is not None]
    name = known[-1] if known else "a source without an offset"
    source = Source(index=index, format=name)
    if not source.is_readable:
        return source
    before, after = map(decode_offset, documents)
    return Source(index=index, format=name, committed=before, planned=after)


def parse_offset(text: str | None) -> Any:
    """Return an offset of the log: a document, or the text of a source that does not write JSON."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def decode_offset(document: Any) -> SourceOffset | None:
    """Decode the offset of a source that can be read; None without one. Raises
    IncompatibleStateError."""
    if document is None:
        return None
    return decode_kinesis(document) if is_offset(document) else decode_any(document)


def format_of(document: Any) -> str:
    """Return the format that wrote an offset; for another package, a description of it."""
    if is_offset(document):
        return KINESIS
    if not isinstance(document, dict):
        return "another source (Spark's rate or memory source, or a package)"
    if type(document.get("v")) is int and "topics" in document:
        return KAFKA
    if document and all(_is_kafka_topic(entry) for entry in document.values()):
        return SPARK_KAFKA
    if isinstance(document.get("metadata"), dict) and "streamName" in document["metadata"]:
        return "awslabs' or Qubole's Kinesis connector"
    if "logOffset" in document:
        return "files, read by Spark"
    if "reservoirId" in document:
        return "Delta Lake"
    return "another package"


def _is_kafka_topic(entry: Any) -> bool:
    return isinstance(entry, dict) and all(
        name.isascii() and name.isdecimal() and type(position) is int
        for name, position in entry.items()
    )
