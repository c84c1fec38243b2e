"""Folders on local and mounted disks, and through fsspec in Google's and Azure's storage.

How a file is created atomically, with its whole content, only if it does not exist:

* local: written under another name, then linked, since a rename replaces an existing file and
  O_EXCL shows readers an incomplete one. This works on NFS too.
* Google's and Azure's: by the conditions of `spark_ssp.common.documents.immutable_files`.
* `memory`, for tests: fsspec checks and then writes, so this runs under a lock.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import fsspec

from spark_ssp.checkpoint.assignments.errors import AssignmentStoreError, store_subject
from spark_ssp.checkpoint.assignments.uri import StoreKind, StoreUri
from spark_ssp.common.aws.error_translation import safe_text
from spark_ssp.common.documents.immutable_files import (
    CONDITIONS,
    PACKAGES,
    WriteOnceFiles,
    missing_package,
)
from spark_ssp.common.errors import (
    AccessError,
    InvalidOptionsError,
    OptionProblem,
    ServiceUnavailableError,
    SspError,
)

T = TypeVar("T")

_CONDITIONS: Final = {**CONDITIONS, "memory": {"mode": "create"}}


def open_files(uri: StoreUri) -> WriteOnceFiles:
    """Return the folder of a URI. InvalidOptionsError if a package is missing."""
    if uri.kind is StoreKind.LOCAL:
        return LocalFiles(uri)
    package = missing_package(uri.scheme)
    if package is not None:
        raise InvalidOptionsError(
            "kafka-ssp",
            [
                OptionProblem(
                    option="assignmentStore",
                    found=f"{uri.scheme}:// without the package {package}",
                    expected=f"{package} installed on the driver",
                    next_step=f"pip install {package}",
                )
            ],
        )
    try:
        system, path = fsspec.url_to_fs(f"{uri.scheme}://{uri.container}/{uri.path}")
    except Exception as error:
        raise _storage_error(uri, error) from error
    return FsspecFiles(uri, system, path)


# --- Local ----------------------------------------------------------------------------------------


class LocalFiles:
    """`WriteOnceFiles` on a local or mounted disk."""

    def __init__(self, uri: StoreUri) -> None:
        self._uri = uri
        self._folder = Path(uri.path)

    def names(self) -> Iterable[str]:
        """Return the file names; none for a missing folder."""
        try:
            return os.listdir(self._folder)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise _os_error(self._uri, error) from error

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        try:
            return (self._folder / name).read_bytes()
        except OSError as error:
            raise _os_error(self._uri, error) from error

    def create(self, name: str, content: bytes) -> bool:
        """Create a file with its content; return False if it exists."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            draft = self._folder / f".{name}.{secrets.token_hex(8)}"
            try:
                _write_through(draft, content)
                os.link(draft, self._folder / name)
            except FileExistsError:
                return False
            finally:
                draft.unlink(missing_ok=True)
            _sync_folder(self._folder)
        except OSError as error:
            raise _os_error(self._uri, error) from error
        return True

    def close(self) -> None:
        """Do nothing: no connection is held."""


def _write_through(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _os_error(uri: StoreUri, error: OSError) -> SspError:
    subject = store_subject(uri.text)
    found = f"{type(error).__name__} ({error.strerror})"
    if isinstance(error, PermissionError):
        return AccessError(
            subject,
            found=found,
            expected="a folder that the driver may read and write, on a file system with hard "
            "links",
            next_step="give the driver's user access to it, or name another assignmentStore",
        )
    return AssignmentStoreError(
        subject,
        found=found,
        expected="a folder, existing or to be created, on a file system with hard links",
        next_step="correct the path, or name another assignmentStore",
    )


# --- fsspec ---------------------------------------------------------------------------------------

_memory: Final = threading.RLock()


class FsspecFiles:
    """`WriteOnceFiles` on a file system of fsspec."""

    def __init__(self, uri: StoreUri, system: Any, folder: str) -> None:
        """`folder` is the path in the form of `system`."""
        self._uri = uri
        self._system = system
        self._folder = folder

    def names(self) -> Iterable[str]:
        """Return the file names; none for a missing folder."""

        def listing() -> list[str]:
            # Some file systems cache listings.
            self._system.invalidate_cache()
            try:
                found: list[str] = self._system.ls(self._folder, detail=False)
            except FileNotFoundError:
                return []
            return [path.rpartition("/")[2] for path in found]

        return self._ask(listing)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""

        def content() -> bytes:
            return bytes(self._system.cat_file(f"{self._folder}/{name}"))

        return self._ask(content)

    def create(self, name: str, content: bytes) -> bool:
        """Create a file with its content; return False if it exists."""

        def create() -> bool:
            try:
                self._system.pipe_file(
                    f"{self._folder}/{name}", content, **_CONDITIONS[self._uri.scheme]
                )
            except FileExistsError:
                return False
            return True

        return self._ask(create)

    def close(self) -> None:
        """Do nothing: no connection is held."""

    def _ask(self, function: Callable[[], T]) -> T:
        """Call `function`. The packages retry by themselves and raise exceptions of many
        libraries."""
        try:
            if self._uri.scheme == "memory":
                with _memory:
                    return function()
            return function()
        except Exception as error:
            raise _storage_error(self._uri, error) from error


def _storage_error(uri: StoreUri, error: Exception) -> SspError:
    subject = store_subject(uri.text)
    found = f"{type(error).__name__} ({safe_text(str(error))})"
    if isinstance(error, PermissionError):
        return AccessError(
            subject,
            found=found,
            expected="permission to list, read and create files in it",
            next_step="grant it to the account of the driver's environment",
        )
    return ServiceUnavailableError(
        subject,
        found=found,
        expected="an answer from the storage",
        next_step=f"check the path, the credentials that {PACKAGES.get(uri.scheme, 'fsspec')} "
        "finds, and the network",
    )
