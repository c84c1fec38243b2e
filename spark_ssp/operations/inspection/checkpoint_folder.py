"""Reads the folder of a checkpoint: on a local or mounted disk, in S3, or in another store through
fsspec. Other users may have written to it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from stat import S_ISDIR
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import fsspec

from spark_ssp.common.aws.error_translation import safe_text
from spark_ssp.common.aws.store import S3Calls, S3Files, StoreLocation
from spark_ssp.common.errors import AccessError, ServiceUnavailableError, SspError, UnsupportedError
from spark_ssp.common.locations import (
    MAX_BYTES,
    IrregularFileError,
    file_path,
    read_regular,
    shown_location,
)
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.write_once_files import S3Folder, is_bucket, missing_package

RESTORE: Final = "restore the file from a backup: a query does not start from it either"
MAX_ENTRIES: Final = 50_000
"""The most entries of a folder that are listed. Spark keeps 100 batches by default."""
_S3: Final = ("s3", "s3a", "s3n")
_SPARKS_FILE: Final = f"a file that Spark wrote, of at most {MAX_BYTES >> 20} MiB"


class CheckpointFolderError(SspError):
    """The folder is not a Spark checkpoint, or a file of it is damaged."""

    kind = "invalid-checkpoint"


class DamagedFileError(CheckpointFolderError):
    """A file of the checkpoint cannot be parsed: the query does not start from it either."""


def damaged(
    location: str, name: str, found: str, expected: str, next_step: str = RESTORE
) -> DamagedFileError:
    """Return the error of a file of a checkpoint that cannot be parsed."""
    return DamagedFileError(
        f"{name} of {shown_location(location)}", found=found, expected=expected, next_step=next_step
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The entries of a folder, sorted. A link to a folder counts as a file."""

    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    """The files that are links to a folder, or to a place that cannot be looked at."""

    @property
    def names(self) -> tuple[str, ...]:
        """Both."""
        return (*self.files, *self.folders)


class Folder(Protocol):
    """A folder with its subfolders. Paths are relative, with slashes. Raises SspError."""

    def listing(self, path: str = "") -> Listing:
        """Return the entries of a subfolder; none if it does not exist."""

    def below(self, path: str) -> Folder:
        """Return a subfolder, which shares the connections. It may have disappeared."""

    def read(self, path: str) -> bytes:
        """Return the content of a file that `listing` returned."""

    def modified_ms(self, path: str) -> int | None:
        """Return the time at which a file was last written, by the clock of the storage, in
        milliseconds since the epoch; None if there is no such file, or the storage has no times."""

    def close(self) -> None:
        """Release connections, also those of the subfolders."""


def location_below(location: str, path: str) -> str:
    """Return the path or URI of a subfolder."""
    return f"{location.rstrip('/')}/{path}"


def open_folder(location: str, connection: ConnectionOptions) -> Folder:
    """Return the folder of a path or URI; `connection` is for S3."""
    try:
        parts = urlsplit(location)
    except ValueError:
        raise CheckpointFolderError(
            f"checkpoint {shown_location(location)}",
            found="a URI that cannot be parsed",
            expected="a URI such as s3://bucket/folder",
            next_step="correct it: it is the query's checkpointLocation",
        ) from None
    if parts.scheme in _S3:
        return _S3Folder(location, connection)
    if parts.scheme == "file":
        return _local_folder(location, file_path(location))
    if parts.scheme and "://" in location:
        return _FsspecFolder(location, parts.scheme)
    return _local_folder(location, Path(location))


def _local_folder(location: str, path: Path) -> Folder:
    folder = _LocalFolder(location, path)
    try:
        if S_ISDIR(path.stat().st_mode):
            return folder
        found = "a file"
    except (FileNotFoundError, NotADirectoryError, ValueError):
        found = "no such folder"
    except OSError as error:
        raise folder.error("", error) from None
    raise CheckpointFolderError(
        f"checkpoint {shown_location(location)}",
        found=found,
        expected="a folder on this machine, or a URI such as s3://bucket/folder",
        next_step="correct the path: it is the query's checkpointLocation",
    )


class _LocalFolder:
    def __init__(self, location: str, path: Path) -> None:
        self._location = location
        self._path = path

    def listing(self, path: str = "") -> Listing:
        try:
            with os.scandir(self._path / path) as entries:
                found = sorted(islice(entries, MAX_ENTRIES + 1), key=lambda entry: entry.name)
            listed = _listed((entry.name, entry.is_dir(follow_symlinks=False)) for entry in found)
            links = [entry.name for entry in found if entry.is_symlink() and _may_be_folder(entry)]
        except (FileNotFoundError, NotADirectoryError):
            return Listing()
        except OSError as error:
            raise self.error(path, error) from None
        return _not_more(replace(listed, links=tuple(links)), self._location, path)

    def below(self, path: str) -> Folder:
        return _LocalFolder(location_below(self._location, path), self._path / path)

    def read(self, path: str) -> bytes:
        try:
            return read_regular(self._path / path)
        except IrregularFileError as error:
            raise damaged(self._location, path, str(error.strerror), _SPARKS_FILE) from None
        except OSError as error:
            raise self.error(path, error) from None

    def modified_ms(self, path: str) -> int | None:
        try:
            return (self._path / path).stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.error(path, error) from None

    def close(self) -> None:
        pass

    def error(self, path: str, error: OSError) -> SspError:
        return AccessError(
            f"checkpoint {shown_location(self._location)}",
            found=f"{type(error).__name__} ({error.strerror}) for {path or 'the folder'}",
            expected="permission to list and read the folder",
            next_step="run the command as a user who may read it",
        )


def _may_be_folder(link: os.DirEntry[str]) -> bool:
    try:
        return link.is_dir()
    except OSError:
        return True


class _S3Folder:
    def __init__(self, location: str, connection: ConnectionOptions) -> None:
        self._location = location
        # Not by `urlsplit`: Hadoop's paths have neither a query nor a fragment.
        self._bucket, _, path = location.partition("://")[2].partition("/")
        self._path = path.strip("/")
        if not is_bucket(self._bucket) or not self._path:
            raise CheckpointFolderError(
                f"checkpoint {shown_location(location)}",
                found="no bucket with a folder in it",
                expected="s3://bucket/folder",
                next_step="correct the URI: it is the query's checkpointLocation",
            )
        where = StoreLocation(
            subject=f"checkpoint {shown_location(location)}",
            service="s3",
            resource=f"the bucket {self._bucket} and its objects",
            option="the URI",
            read_by="spark-ssp",
            absent=CheckpointFolderError,
        )
        self._calls = S3Calls.open(where, connection)

    def listing(self, path: str = "") -> Listing:
        files, folders = self._files(path).listing(MAX_ENTRIES)
        found = Listing(files=tuple(filter(None, files)), folders=tuple(filter(None, folders)))
        return _not_more(found, self._location, path)

    def below(self, path: str) -> Folder:
        found = copy(self)
        found._location = location_below(self._location, path)
        found._path = f"{self._path}/{path}"
        return found

    def read(self, path: str) -> bytes:
        folder, _, name = path.rpartition("/")
        return _not_larger(self._files(folder).read(name), self._location, path)

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
                f"checkpoint {shown_location(location)}",
                found=f"{scheme}:// without the package {package}",
                expected=f"{package} installed",
                next_step=f"pip install {package}",
            )
        try:
            # No caching: a query writes to the folder.
            self._system, self._path = fsspec.url_to_fs(
                location, use_listings_cache=False, skip_instance_cache=True
            )
        except Exception as error:
            raise self._error(error) from error

    def listing(self, path: str = "") -> Listing:
        try:
            self._system.invalidate_cache()
            found: list[Any] = self._system.ls(f"{self._path}/{path}".rstrip("/"), detail=True)
        except FileNotFoundError:
            return Listing()
        except Exception as error:
            raise self._error(error) from error
        names = ((str(entry["name"]).rstrip("/").rpartition("/")[2], entry) for entry in found)
        listed = _listed(sorted((name, entry["type"] == "directory") for name, entry in names))
        return _not_more(listed, self._location, path)

    def below(self, path: str) -> Folder:
        found = copy(self)
        found._location = location_below(self._location, path)
        found._path = f"{self._path.rstrip('/')}/{path}"
        return found

    def read(self, path: str) -> bytes:
        try:
            content = bytes(self._system.cat_file(f"{self._path}/{path}", end=MAX_BYTES + 1))
        except Exception as error:
            raise self._error(error) from error
        return _not_larger(content, self._location, path)

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
        shown, found = shown_location(self._location), type(error).__name__
        # Its text may quote a part of a password, unless it names a package that is missing.
        if shown == self._location or isinstance(error, ImportError):
            found = f"{found} ({safe_text(str(error))})"
        return ServiceUnavailableError(
            f"checkpoint {shown}",
            found=found,
            expected="a folder that fsspec can list and read",
            next_step="check the URI, the credentials that fsspec's package finds, and the network",
        )


def _listed(entries: Iterable[tuple[str, bool]]) -> Listing:
    files: list[str] = []
    folders: list[str] = []
    for name, is_folder in entries:
        (folders if is_folder else files).append(name)
    return Listing(files=tuple(files), folders=tuple(folders))


def _not_more(found: Listing, location: str, path: str) -> Listing:
    if len(found.names) <= MAX_ENTRIES:
        return found
    raise UnsupportedError(
        f"folder {shown_location(location_below(location, path)).rstrip('/')}",
        found=f"more than {MAX_ENTRIES} entries",
        expected="a folder of checkpoints, or the log of a query that keeps fewer batches",
        next_step="name the checkpoints themselves, or set spark.sql.streaming.minBatchesToRetain",
    )


def _not_larger(content: bytes, location: str, path: str) -> bytes:
    if len(content) <= MAX_BYTES:
        return content
    raise damaged(location, path, f"more than {MAX_BYTES >> 20} MiB", _SPARKS_FILE)


def _millis(time: datetime) -> int | None:
    """Return a time in milliseconds since the epoch; None if it has no zone."""
    return None if time.tzinfo is None else round(time.timestamp() * 1000)
