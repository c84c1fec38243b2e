"""Folders to read: local or mounted disks, S3, and other stores through fsspec.

`Folder` has no method that writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

import fsspec

from spark_ssp.common.aws.error_translation import safe_text
from spark_ssp.common.aws.s3_files import S3Calls, S3Files
from spark_ssp.common.aws.s3_names import S3Folder, is_bucket
from spark_ssp.common.aws.store import StoreLocation
from spark_ssp.common.documents.immutable_files import missing_package
from spark_ssp.common.errors import AccessError, ServiceUnavailableError, SspError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.operations.inspection.errors import CheckpointFolderError

_S3: Final = ("s3", "s3a", "s3n")


class Folder(Protocol):
    """A folder with its subfolders. Paths are relative, with slashes. Raises SspError."""

    def names(self, path: str = "") -> list[str]:
        """Return the names of the files in a subfolder; none if it does not exist. A local folder
        returns its subfolders too."""

    def read(self, path: str) -> bytes:
        """Return the content of a file that `names` returned."""

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

    def close(self) -> None:
        pass

    def _error(self, error: Exception) -> SspError:
        return ServiceUnavailableError(
            f"checkpoint {self._location}",
            found=f"{type(error).__name__} ({safe_text(str(error))})",
            expected="a folder that fsspec can list and read",
            next_step="check the URI, the credentials that fsspec's package finds, and the network",
        )
