"""Where a root's plans can be kept: on this machine, in S3, in a store that fsspec knows.

A root is a path of this machine, or a URI: `file:`, `s3a:` (`s3:`, `s3n:`), or one of fsspec's. No
stage can be called `_plans`: names begin with a letter or a digit.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ssp_common.aws.s3_names import S3Folder, is_bucket
from ssp_common.documents.immutable_files import (
    CONDITIONS,
    PACKAGES,
    WriteOnceFiles,
    missing_package,
)
from ssp_common.errors import SspError, UnsupportedError
from ssp_common.options.endpoints import ConnectionOptions

FOLDER: Final = "_plans"
"""The folder below a root that holds its plans."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_S3: Final = frozenset({"s3", "s3a", "s3n"})
"""What Hadoop's file systems of S3 are or were called."""
_AZURE: Final = frozenset({"abfs", "abfss"})
"""Theirs say `container@account`."""
_NO_PORT: Final = re.compile(r":(?!\d*$)")


class PlanStoreError(SspError):
    """The place of the recorded plans cannot be read or written."""

    kind = "plan-store"


def is_path(root: str) -> bool:
    """Whether a root is a path of this machine, without a scheme."""
    return _SCHEME.match(root) is None


def shown_root(root: str) -> str:
    """Return a root without user and password, which may contain slashes as AWS keys do, and
    without a query, which may be a signature."""
    if is_path(root):
        return root
    shown, mark, _ = _without_user(root).partition("?")
    return f"{shown}?***" if mark else shown


def _without_user(root: str) -> str:
    scheme, _, rest = root.partition("://")
    host, slash, path = rest.partition("/")
    if "@" in host:
        if scheme.lower() in _AZURE and ":" not in host:
            return root
        return f"{scheme}://***@{host.rpartition('@')[2]}{slash}{path}"
    if _NO_PORT.search(host) and "@" in path:
        return f"{scheme}://***@{path.rpartition('@')[2]}"
    return root


def open_folder(root: str) -> WriteOnceFiles:
    """The folder of a root's plans; nothing is asked of it yet.

    What it raises is an OSError, or of S3 an error of this project. Raises UnsupportedError for a
    store that nothing here can reach, PlanStoreError for what names no folder of S3, and as
    `StoreCalls.open` does.
    """
    scheme = _SCHEME.match(root)
    if scheme is None:
        return _LocalFolder(Path(root) / FOLDER)
    if scheme[1].lower() == "file":
        return _LocalFolder(Path(unquote(urlsplit(root).path)) / FOLDER)
    if scheme[1].lower() in _S3:
        return _open_s3(root)
    return _StoreFolder(root, scheme[1])


# --- S3 ------------------------------------------------------------------------------------------


def _open_s3(root: str) -> WriteOnceFiles:
    """By AWS's default chain, with AWS_REGION and AWS_ENDPOINT_URL: Spark's settings of S3 are out
    of reach of a client of Spark Connect."""
    # Not everybody who plans needs AWS's SDK loaded.
    from ssp_common.aws.s3_files import S3Calls, S3Files
    from ssp_common.aws.store import StoreLocation

    folder = s3_folder(root)
    where = StoreLocation(
        subject=f"plans under {shown_root(root)}",
        service="s3",
        resource=folder.resource,
        option="root",
        read_by="a pipeline",
        absent=PlanStoreError,
    )
    return S3Files(folder, S3Calls.open(where, ConnectionOptions()))


def s3_folder(root: str) -> S3Folder:
    """Where the plans of a root in S3 are, beside the checkpoints: so it is read as Hadoop does,
    which decodes nothing and takes slashes in a row for one."""
    _, slashes, rest = root.partition("://")
    bucket, _, path = rest.partition("/")
    parts = [part for part in path.split("/") if part]
    if not slashes or not is_bucket(bucket) or not {".", ".."}.isdisjoint(parts):
        raise PlanStoreError(
            f"plans under {shown_root(root)}",
            found="a root that names no bucket of S3, or no folder in it",
            expected="s3a://bucket/path, with a bucket's name of 3 to 63 characters as S3 has it, "
            "and without a user, a password, '.' and '..'",
            next_step="mend the root; credentials are found by AWS's default chain",
        )
    return S3Folder(bucket=bucket, path="/".join([*parts, FOLDER]))


# --- This machine --------------------------------------------------------------------------------


class _LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> Iterable[str]:
        try:
            return os.listdir(self._path)
        except FileNotFoundError:
            return ()

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def create(self, name: str, content: bytes) -> bool:
        """Written whole under a passing name and then linked: nobody sees half of it, and only one
        of two gets the name."""
        self._path.mkdir(parents=True, exist_ok=True)
        passing = self._path / f".{secrets.token_hex(8)}.{name}"
        try:
            # The umask decides who may read a plan, as for any other file of the user.
            with open(passing, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            self._name(passing, self._path / name, content)
        except FileExistsError:
            return False
        finally:
            passing.unlink(missing_ok=True)
        return True

    def _name(self, passing: Path, final: Path, content: bytes) -> None:
        try:
            os.link(passing, final)
        except FileExistsError:
            raise
        except OSError:
            # Some mounts of stores have no links.
            with open(final, "xb") as file:
                file.write(content)

    def close(self) -> None:
        """Nothing is kept open."""


# --- By fsspec -----------------------------------------------------------------------------------


class _StoreFolder:
    """A folder of a store, by way of fsspec. Google's and Azure's create a file only if it is not
    there, in one step; others, HDFS among them, look first and then write."""

    def __init__(self, root: str, scheme: str) -> None:
        import fsspec

        # As Hadoop reads it: `hdfs:/a` is `hdfs:///a`. fsspec would take it for a path.
        uri = re.sub(r":/(?!/)", ":///", root, count=1).rstrip("/") + "/" + FOLDER
        try:
            if "://" not in uri:
                raise ValueError("a scheme without a path")
            # Nothing remembered: another process may have added a plan.
            store, path = fsspec.core.url_to_fs(
                uri, use_listings_cache=False, skip_instance_cache=True
            )
        except (ImportError, ValueError) as error:
            raise UnsupportedError(
                f"plans under {shown_root(root)}",
                found=f"a root of {scheme}, which cannot be reached ({type(error).__name__})",
                expected="a folder of this machine, s3a://, or a store that fsspec can reach",
                next_step=_way_to(scheme),
            ) from error
        except Exception as error:
            raise _as_os_error(error) from error
        self._store: Any = store
        self._path = path
        self._condition = CONDITIONS.get(scheme)

    def names(self) -> Iterable[str]:
        try:
            with _as_errors_of_a_store():
                found = self._store.ls(self._path, detail=False)
        except FileNotFoundError:
            return ()
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def read(self, name: str) -> bytes:
        with _as_errors_of_a_store():
            return bytes(self._store.cat_file(f"{self._path}/{name}"))

    def create(self, name: str, content: bytes) -> bool:
        with _as_errors_of_a_store():
            # Google's and Azure's have no folders to make; adlfs would make a container.
            if self._condition is None:
                with suppress(NotImplementedError, FileExistsError):
                    self._store.makedirs(self._path, exist_ok=True)
            condition = self._condition or {"mode": "create"}
            try:
                self._store.pipe_file(f"{self._path}/{name}", content, **condition)
            except FileExistsError:
                return False
        return True

    def close(self) -> None:
        """fsspec keeps connections for itself."""


def _way_to(scheme: str) -> str:
    missing = missing_package(scheme)
    if missing is not None:
        return f"pip install {missing}, where the driver runs"
    package = PACKAGES.get(scheme)
    if package is not None:
        return f"check the root, and what {package} is told by the environment"
    return f"check the root, or install the package that fsspec has for {scheme}"


@contextmanager
def _as_errors_of_a_store() -> Iterator[None]:
    """The packages behind fsspec raise errors of their own libraries, too: these by kind alone."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise _as_os_error(error) from error


def _as_os_error(error: Exception) -> OSError:
    return OSError(errno.EIO, type(error).__name__)
