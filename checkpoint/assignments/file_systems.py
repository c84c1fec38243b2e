"""Folders on local and mounted disks, and by fsspec on Google's and Azure's storage.

How a file is created only if it is not there, in one step and with all its content:

* local: written under another name, then linked, as rename would replace what is there, and O_EXCL
  would let readers see a file before its content. Holds on NFS as well.
* Google's and Azure's: see `ssp_common.documents.immutable_files`.
* `memory`, for tests: fsspec looks and then writes, so it is done under a lock.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import fsspec

from checkpoint.assignments.errors import AssignmentStoreError, store_subject
from checkpoint.assignments.uri import StoreKind, StoreUri
from ssp_common.aws.error_translation import safe_text
from ssp_common.documents.immutable_files import (
    CONDITIONS,
    PACKAGES,
    WriteOnceFiles,
    missing_package,
)
from ssp_common.errors import (
    AccessError,
    InvalidOptionsError,
    OptionProblem,
    ServiceUnavailableError,
    SspError,
)

T = TypeVar("T")

_CONDITIONS: Final = {**CONDITIONS, "memory": {"mode": "create"}}


def open_files(uri: StoreUri) -> WriteOnceFiles:
    """The folder that `place` names. InvalidOptionsError when a package is missing."""
    if uri.kind is StoreKind.LOCAL:
        return LocalFiles(uri)
    package = missing_package(uri.scheme)
    if package is not None:
        raise InvalidOptionsError(
            "kafka-ssp",
            [
                OptionProblem(
                    option="assignmentStore",
                    found=f"{uri.scheme}://, and no package {package}",
                    expected=f"{package} where the driver runs",
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
    """`WriteOnceFiles` on a disk of this machine, or one that is mounted."""

    def __init__(self, uri: StoreUri) -> None:
        self._uri = uri
        self._folder = Path(uri.path)

    def names(self) -> Iterable[str]:
        """See `WriteOnceFiles`."""
        try:
            return os.listdir(self._folder)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise _os_error(self._uri, error) from error

    def read(self, name: str) -> bytes:
        """See `WriteOnceFiles`."""
        try:
            return (self._folder / name).read_bytes()
        except OSError as error:
            raise _os_error(self._uri, error) from error

    def create(self, name: str, content: bytes) -> bool:
        """See `WriteOnceFiles`."""
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
        """See `WriteOnceFiles`."""


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
        expected="a folder, or a place for one, on a file system with hard links",
        next_step="mend the path, or name another assignmentStore",
    )


# --- By fsspec ------------------------------------------------------------------------------------

_memory: Final = threading.RLock()


class FsspecFiles:
    """`WriteOnceFiles` on a file system of fsspec."""

    def __init__(self, uri: StoreUri, system: Any, folder: str) -> None:
        """`folder` is the path as `system` has it."""
        self._uri = uri
        self._system = system
        self._folder = folder

    def names(self) -> Iterable[str]:
        """See `WriteOnceFiles`."""

        def listing() -> list[str]:
            # Some keep what they listed before.
            self._system.invalidate_cache()
            try:
                found: list[str] = self._system.ls(self._folder, detail=False)
            except FileNotFoundError:
                return []
            return [path.rpartition("/")[2] for path in found]

        return self._ask(listing)

    def read(self, name: str) -> bytes:
        """See `WriteOnceFiles`."""

        def content() -> bytes:
            return bytes(self._system.cat_file(f"{self._folder}/{name}"))

        return self._ask(content)

    def create(self, name: str, content: bytes) -> bool:
        """See `WriteOnceFiles`."""

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
        """See `WriteOnceFiles`."""

    def _ask(self, function: Callable[[], T]) -> T:
        """The packages try again themselves. What they raise is of many libraries."""
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
            next_step="give it to the account that the driver has by the environment",
        )
    return ServiceUnavailableError(
        subject,
        found=found,
        expected="an answer from the storage",
        next_step=f"check the path, the credentials that {PACKAGES.get(uri.scheme, 'fsspec')} "
        "finds, and the network",
    )
