"""Places that users name, and that other users may have written to: how an error shows a URI, and
how a file of such a folder is read."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 64 << 20
"""The most that is read of a file: far more than a batch, a plan or an assignment has."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/*)")
_AZURE: Final = frozenset({"abfs", "abfss"})
"""Schemes with an authority of the form `container@account`."""
_NO_PORT: Final = re.compile(r":(?!\d*$)")


def is_path(location: str) -> bool:
    """Return whether a location is a path of this machine, without a scheme."""
    return _SCHEME.match(location) is None


def file_path(uri: str) -> Path:
    """Return the path of a `file:` URI as Hadoop reads it: nothing is decoded, and there is neither
    a query nor a fragment, so `%`, `?` and `#` belong to the path. A host is left out."""
    rest = uri.partition(":")[2]
    return Path(f"/{rest[2:].partition('/')[2]}" if rest.startswith("//") else rest)


def shown_location(location: str) -> str:
    """Return a location without user and password, which may contain slashes as AWS keys do, and
    without a query, which may be a signature and which a `file:` URI does not have."""
    match = _SCHEME.match(location)
    if match is None:
        return location
    begin = match[0]
    shown = _without_user(match[1], location.removeprefix(begin))
    path, mark, _ = shown.partition("?")
    return f"{begin}{path}?***" if mark and match[1].lower() != "file" else f"{begin}{shown}"


def _without_user(scheme: str, rest: str) -> str:
    host, slash, path = rest.partition("/")
    if "@" in host:
        if scheme.lower() in _AZURE and ":" not in host:
            return rest
        return f"***@{host.rpartition('@')[2]}{slash}{path}"
    if _NO_PORT.search(host) and "@" in path:
        return f"***@{path.rpartition('@')[2]}"
    return rest


class IrregularFileError(OSError):
    """The file is none that this project or Spark writes; `strerror` describes it."""


def read_regular(path: Path) -> bytes:
    """Return the content of a file. Raises IrregularFileError for a symbolic link, a pipe, a device
    or a folder, and above `MAX_BYTES`: a reader would wait or fill its memory, and might show a
    file that the writer of the link cannot read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _irregular(path, "a symbolic link") from None
        raise
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            raise _irregular(path, "a folder" if stat.S_ISDIR(mode) else "a pipe or a device")
        with open(handle, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
    finally:
        os.close(handle)
    if len(content) > MAX_BYTES:
        raise _irregular(path, f"a file of more than {MAX_BYTES >> 20} MiB")
    return content


def _irregular(path: Path, what: str) -> IrregularFileError:
    return IrregularFileError(errno.EINVAL, what, str(path))
