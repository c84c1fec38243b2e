"""Reads a Spark checkpoint: the log of planned batches and that of committed ones.

    metadata     {"id": "<query id>"}
    offsets/7    v1, a line of metadata, then a line for each source: its offset after batch 7
    commits/7    v1, a line of metadata: batch 7 is committed

A line `-` is a source without an offset. Spark plans a batch by writing its offsets, and restarts
at the newest of them: if it is not committed, the batch runs again, from the offsets one batch
earlier (`MicroBatchExecution.populateStartOffsets`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

import fsspec

from spark_ssp.common.aws.error_translation import safe_text
from spark_ssp.common.aws.store import S3Calls, S3Files, StoreLocation
from spark_ssp.common.errors import AccessError, ServiceUnavailableError, SspError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.write_once_files import S3Folder, is_bucket, missing_package
from spark_ssp.kafka_source.model.offset import Offset as KafkaOffset
from spark_ssp.kafka_source.planning.spark_checkpoint import SparkOffset, decode_any
from spark_ssp.kinesis_source.model.offset import Offset as KinesisOffset
from spark_ssp.kinesis_source.model.offset import decode as decode_kinesis
from spark_ssp.kinesis_source.model.offset import is_offset

KINESIS = "kinesis-ssp"
KAFKA = "kafka-ssp"
SPARK_KAFKA = "kafka"
_S3: Final = ("s3", "s3a", "s3n")
SourceOffset = KinesisOffset | KafkaOffset | SparkOffset


class CheckpointFolderError(SspError):
    """The folder is not a Spark checkpoint, or a file of it is damaged."""

    kind = "invalid-checkpoint"


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
    """Read a checkpoint. Raises CheckpointFolderError if it is none or damaged, and
    IncompatibleStateError for an offset of a later release."""
    # Commits first: a running query writes the offsets of a batch before its commit.
    commits, offsets = (batches_of(folder.names(name)) for name in ("commits", "offsets"))
    root = folder.names()
    if not offsets and not commits and "metadata" not in root:
        raise _foreign(location, root)
    query = query_id(folder.read("metadata"), location) if "metadata" in root else None
    committed = commits[-1] if commits else None
    newest = offsets[-1] if offsets else None
    if committed is not None and committed not in offsets:
        raise damaged(
            location,
            f"offsets/{committed}",
            f"no such file, while commits/{committed} exists",
            "the offsets of the last committed batch",
        )
    if committed is not None:
        _check_version(folder.read(f"commits/{committed}"), location, f"commits/{committed}")
    last = None if committed is None else read_batch(folder, location, committed)
    planned = None
    if newest is not None and newest != committed:
        planned = read_batch(folder, location, newest)
    return Checkpoint(
        location=location,
        query=query,
        committed=committed,
        planned=planned,
        last=last,
        kept=tuple(offsets),
        sources=_sources(location, last, planned),
        notes=tuple(_notes(committed, newest)),
    )


def batches_of(names: list[str]) -> list[int]:
    """Return the batches of a log from the names of its files, sorted."""
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


def _foreign(location: str, root: list[str]) -> CheckpointFolderError:
    if "_delta_log" in root or "_spark_metadata" in root:
        found = "a table, which a query writes"
    elif root:
        found = "a folder without offsets, commits and metadata"
    else:
        found = "an empty folder"
    return CheckpointFolderError(
        f"checkpoint {location}",
        found=found,
        expected="the checkpoint of a Spark query: the folders offsets and commits",
        next_step="name the query's checkpointLocation itself",
    )


def query_id(content: bytes, location: str) -> str:
    """Return the id in the file `metadata`."""
    try:
        return str(json.loads(content)["id"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise damaged(location, "metadata", "no query id", '{"id": "<query id>"}') from None


def _check_version(content: bytes, location: str, name: str) -> list[str]:
    """Return the lines after the version."""
    try:
        first, *lines = content.decode().split("\n")
    except UnicodeDecodeError:
        raise damaged(location, name, "bytes that are not UTF-8", "text") from None
    if first != "v1":
        found = f"version {first[:20]!r}" if first else "an empty file"
        raise damaged(location, name, found, "version v1 of Spark's log")
    return lines


def read_batch(folder: Folder, location: str, batch: int) -> LoggedBatch:
    """Read a file of the offset log."""
    name = f"offsets/{batch}"
    lines = _check_version(folder.read(name), location, name)
    if not lines or not lines[0].strip():
        raise damaged(location, name, "no metadata", "a line of metadata after the version")
    try:
        metadata: Any = json.loads(lines[0])
        planned = metadata.get("batchTimestampMs")
    except (ValueError, AttributeError, RecursionError):
        raise damaged(location, name, "metadata that is not JSON", "an object") from None
    return LoggedBatch(
        batch=batch,
        planned_ms=planned if type(planned) is int and planned > 0 else None,
        offsets=tuple(None if line == "-" else line for line in lines[1:] if line),
    )


def _notes(committed: int | None, newest: int | None) -> list[str]:
    first = -1 if committed is None else committed
    if newest is None or newest <= first + 1:
        return []
    text = (
        f"batches {first + 1} to {newest} are planned and none of them is committed: as with "
        f"asynchronous progress tracking. A restart runs batch {newest} again, from the offsets of "
        f"batch {newest - 1}"
    )
    return [text]


def damaged(location: str, name: str, found: str, expected: str) -> CheckpointFolderError:
    """Return the error of a file of a checkpoint that cannot be parsed."""
    return CheckpointFolderError(
        f"{name} of {location}",
        found=found,
        expected=expected,
        next_step="restore the file from a backup; a query does not start from it either",
    )


# --- Sources --------------------------------------------------------------------------------------


def _sources(
    location: str, last: LoggedBatch | None, planned: LoggedBatch | None
) -> tuple[Source, ...]:
    for batch in filter(None, (last, planned)):
        for text in batch.offsets:
            if text is not None and text.startswith("{") and isinstance(parse_offset(text), str):
                raise damaged(
                    location,
                    f"offsets/{batch.batch}",
                    "a line that begins like JSON and is not, as in a file that was cut off",
                    "an offset of each source",
                )
    before = () if last is None else last.offsets
    after = () if planned is None else planned.offsets
    count = max(len(before), len(after))
    texts = [
        [entries[n] if n < len(entries) else None for n in range(count)]
        for entries in (before, after)
    ]
    return tuple(_source(n, one, other) for n, (one, other) in enumerate(zip(*texts, strict=True)))


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


# --- Folders: local or mounted disks, S3, and other stores through fsspec -------------------------


class Folder(Protocol):
    """A folder with its subfolders. Paths are relative, with slashes. Raises SspError."""

    def names(self, path: str = "") -> list[str]:
        """Return the names of the files in a subfolder; none if it does not exist. A local folder
        returns its subfolders too."""

    def read(self, path: str) -> bytes:
        """Return the content of a file that `names` returned."""

    def modified_ms(self, path: str) -> int | None:
        """Return the time at which a file was last written, by the clock of the storage, in
        milliseconds since the epoch; None if there is no such file, or the storage has no times."""

    def close(self) -> None:
        """Release connections."""


def open_folder(location: str, connection: ConnectionOptions) -> Folder:
    """Return the folder of a path or URI; `connection` is for S3."""
    parts = urlsplit(location)
    if parts.scheme in _S3:
        return _S3Folder(location, connection)
    if parts.scheme == "file":
        return _LocalFolder(location, Path(unquote(parts.path)))
    if parts.scheme and "://" in location:
        return _FsspecFolder(location, parts.scheme)
    return _LocalFolder(location, Path(location))


class _LocalFolder:
    def __init__(self, location: str, path: Path) -> None:
        self._location = location
        self._path = path
        if not path.is_dir():
            raise CheckpointFolderError(
                f"checkpoint {location}",
                found="a file" if path.exists() else "no such folder",
                expected="a folder on this machine, or a URI such as s3://bucket/folder",
                next_step="correct the path: it is the query's checkpointLocation",
            )

    def names(self, path: str = "") -> list[str]:
        try:
            return sorted(entry.name for entry in (self._path / path).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._error(path, error) from None

    def read(self, path: str) -> bytes:
        try:
            return (self._path / path).read_bytes()
        except OSError as error:
            raise self._error(path, error) from None

    def modified_ms(self, path: str) -> int | None:
        try:
            return (self._path / path).stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error(path, error) from None

    def close(self) -> None:
        pass

    def _error(self, path: str, error: OSError) -> SspError:
        return AccessError(
            f"checkpoint {self._location}",
            found=f"{type(error).__name__} ({error.strerror}) for {path or 'the folder'}",
            expected="permission to list and read the folder",
            next_step="run the command as a user who may read it",
        )


class _S3Folder:
    def __init__(self, location: str, connection: ConnectionOptions) -> None:
        parts = urlsplit(location)
        self._bucket, self._path = parts.netloc, parts.path.strip("/")
        if not is_bucket(self._bucket) or not self._path:
            raise CheckpointFolderError(
                f"checkpoint {location}",
                found="no bucket with a folder in it",
                expected="s3://bucket/folder",
                next_step="correct the URI: it is the query's checkpointLocation",
            )
        where = StoreLocation(
            subject=f"checkpoint {location}",
            service="s3",
            resource=f"the bucket {self._bucket} and its objects",
            option="the URI",
            read_by="spark-ssp",
            absent=CheckpointFolderError,
        )
        self._calls = S3Calls.open(where, connection)

    def names(self, path: str = "") -> list[str]:
        return sorted(name for name in self._files(path).names() if name)

    def read(self, path: str) -> bytes:
        folder, _, name = path.rpartition("/")
        return self._files(folder).read(name)

    def modified_ms(self, path: str) -> int | None:
        key = f"{self._path}/{path}"
        request = {"Bucket": self._bucket, "Prefix": key, "MaxKeys": 1}
        found = self._calls.ask("ListObjectsV2", request).get("Contents", ())
        times = [entry["LastModified"] for entry in found if entry["Key"] == key]
        return _millis(times[0]) if times else None

    def close(self) -> None:
        self._calls.close()

    def _files(self, path: str) -> S3Files:
        full = "/".join(part for part in (self._path, path) if part)
        return S3Files(S3Folder(bucket=self._bucket, path=full), self._calls)


class _FsspecFolder:
    def __init__(self, location: str, scheme: str) -> None:
        self._location = location
        package = missing_package(scheme)
        if package is not None:
            raise CheckpointFolderError(
                f"checkpoint {location}",
                found=f"{scheme}:// without the package {package}",
                expected=f"{package} installed",
                next_step=f"pip install {package}",
            )
        try:
            self._system, self._path = fsspec.url_to_fs(location)
        except Exception as error:
            raise self._error(error) from error

    def names(self, path: str = "") -> list[str]:
        try:
            found: list[Any] = self._system.ls(f"{self._path}/{path}".rstrip("/"), detail=False)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._error(error) from error
        return sorted(str(name).rstrip("/").rpartition("/")[2] for name in found)

    def read(self, path: str) -> bytes:
        try:
            return bytes(self._system.cat_file(f"{self._path}/{path}"))
        except Exception as error:
            raise self._error(error) from error

    def modified_ms(self, path: str) -> int | None:
        try:
            return _millis(self._system.modified(f"{self._path}/{path}"))
        except (FileNotFoundError, NotImplementedError):
            return None
        except Exception as error:
            raise self._error(error) from error

    def close(self) -> None:
        pass

    def _error(self, error: Exception) -> SspError:
        return ServiceUnavailableError(
            f"checkpoint {self._location}",
            found=f"{type(error).__name__} ({safe_text(str(error))})",
            expected="a folder that fsspec can list and read",
            next_step="check the URI, the credentials that fsspec's package finds, and the network",
        )


def _millis(time: datetime) -> int | None:
    """Return a time in milliseconds since the epoch; None if it has no zone."""
    return None if time.tzinfo is None else round(time.timestamp() * 1000)
