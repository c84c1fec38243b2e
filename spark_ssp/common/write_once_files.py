"""Creates files in one step and never changes them, in any storage that supports it.

Stores of assignments and of plans need nothing else: each write is a new file with the next number.
If two writers read the same newest file and both create the next one, one of them fails.

`LocalFiles` are on this machine, `FsspecFiles` in the storage of others, and those in S3 in
`spark_ssp.common.aws.store`. How a file is created, with its whole content, only if it is absent:

* local: written under another name, then linked, since a rename replaces an existing file and
  O_EXCL shows readers an incomplete one. This works on NFS too.
* Google's and Azure's: by a condition of the request (`CONDITIONS`).
* `memory`, for tests: fsspec checks and then writes, so this runs under a lock.
* others, such as HDFS: fsspec checks and then writes.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

from spark_ssp.common.locations import read_regular

CONDITIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "abfs": {"overwrite": False},
    "abfss": {"overwrite": False},
    "az": {"overwrite": False},
    "gcs": {"mode": "create"},
    "gs": {"mode": "create"},
}
"""The schemes whose storage creates a file only if it does not exist, in one step, through fsspec,
and the arguments of `pipe_file` for it: `If-None-Match: *` by adlfs, `ifGenerationMatch=0` by
gcsfs."""

PACKAGES: Final[Mapping[str, str]] = {
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "gcs": "gcsfs",
    "gs": "gcsfs",
}
"""The package that fsspec needs for each of them."""


def missing_package(scheme: str) -> str | None:
    """That package, if it is not installed here. fsspec itself knows some of these schemes by name,
    and some only from the package."""
    package = PACKAGES.get(scheme)
    return package if package is not None and find_spec(package) is None else None


class WriteOnceFiles(Protocol):
    """The files of one folder. Errors are those that `failure` of the implementation returns, S3's
    an SspError."""

    def names(self) -> Iterable[str]:
        """The names of all files in it; none if it is not there. Not older than this call."""

    def read(self, name: str) -> bytes:
        """All of a file that is there."""

    def create(self, name: str, content: bytes) -> bool:
        """Create a file in one step, with all of its content; False if it is there."""

    def close(self) -> None:
        """Let go of connections."""


Failure = Callable[[Exception], Exception]
"""Returns the error to raise for one of the storage."""


@contextmanager
def _failing_as(failure: Failure, *errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        failed = failure(error)
        if failed is error:
            raise
        raise failed from error


# --- This machine --------------------------------------------------------------------------------


class LocalFiles:
    """`WriteOnceFiles` on a local or mounted disk. `failure` is for OSError."""

    def __init__(self, folder: Path, failure: Failure, *, needs_links: bool) -> None:
        """Without `needs_links`, a file system without hard links is used too: a file that is being
        created there can be read incomplete."""
        self._folder = folder
        self._failure = failure
        self._needs_links = needs_links

    def names(self) -> Iterable[str]:
        """Return the file names; none for a missing folder."""
        with _failing_as(self._failure, OSError):
            try:
                return os.listdir(self._folder)
            except FileNotFoundError:
                return ()

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with _failing_as(self._failure, OSError):
            return read_regular(self._folder / name)

    def create(self, name: str, content: bytes) -> bool:
        """Create a file with its content; return False if it exists."""
        with _failing_as(self._failure, OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            draft = self._folder / f".{name}.{secrets.token_hex(8)}"
            try:
                # The umask determines a file's permissions, as for any other file of the user.
                with draft.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                self._publish(draft, self._folder / name, content)
            except FileExistsError:
                return False
            finally:
                draft.unlink(missing_ok=True)
            return True

    def _publish(self, draft: Path, final: Path, content: bytes) -> None:
        try:
            os.link(draft, final)
        except FileExistsError:
            raise
        except OSError:
            if self._needs_links:
                raise
            file = final.open("xb")
            try:
                with file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            except BaseException:
                # As on a full disk: the file would be the newest, and incomplete.
                with suppress(OSError):
                    final.unlink()
                raise
        if self._needs_links:
            _sync_folder(self._folder)

    def close(self) -> None:
        """Do nothing: no file stays open."""


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- fsspec --------------------------------------------------------------------------------------

_memory: Final = threading.RLock()


class FsspecFiles:
    """`WriteOnceFiles` on a file system of fsspec. `failure` is for the errors of fsspec and of the
    package behind it, which retries by itself."""

    def __init__(self, uri: str, failure: Failure) -> None:
        """Open the folder of a URI. Raises the errors of fsspec and of the package."""
        import fsspec

        self._scheme = uri.partition(":")[0]
        self._failure = failure
        # No caching: another process may have added a file.
        system, path = fsspec.core.url_to_fs(
            uri, use_listings_cache=False, skip_instance_cache=True
        )
        self._system: Any = system
        self._path: str = path

    def names(self) -> Iterable[str]:
        """Return the file names; none for a missing folder."""
        with self._asking():
            self._system.invalidate_cache()
            try:
                found = self._system.ls(self._path, detail=False)
            except FileNotFoundError:
                return ()
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with self._asking():
            return bytes(self._system.cat_file(f"{self._path}/{name}"))

    def create(self, name: str, content: bytes) -> bool:
        """Create a file with its content; return False if it exists."""
        condition = CONDITIONS.get(self._scheme)
        with self._asking():
            # Google's and Azure's stores need no folders; adlfs would create a container.
            if condition is None:
                with suppress(NotImplementedError, FileExistsError):
                    self._system.makedirs(self._path, exist_ok=True)
            try:
                self._system.pipe_file(
                    f"{self._path}/{name}", content, **(condition or {"mode": "create"})
                )
            except FileExistsError:
                return False
            return True

    def close(self) -> None:
        """Do nothing: fsspec manages its connections."""

    @contextmanager
    def _asking(self) -> Iterator[None]:
        with (
            _failing_as(self._failure, Exception),
            _memory if self._scheme == "memory" else nullcontext(),
        ):
            yield


# --- Names in S3 ---------------------------------------------------------------------------------

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Folder:
    """A bucket, and the keys in it that begin with `path` and a slash."""

    bucket: str
    path: str
    """Not empty, without a slash at either end."""

    @property
    def resource(self) -> str:
        """Return the resource of permissions, as errors describe it."""
        return f"the bucket {self.bucket} and its objects"


def is_bucket(name: str) -> bool:
    """Return whether this is a valid bucket name."""
    return _BUCKET.fullmatch(name) is not None
