"""Creates files in one step and never changes them, in any storage that supports it.

Stores of assignments and of plans need nothing else: each write is a new file with the next number.
If two writers read the same newest file and both create the next one, one of them fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any, Final, Protocol

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
    """The files of one folder. Errors are those of the implementation."""

    def names(self) -> Iterable[str]:
        """The names of all files in it; none if it is not there. Not older than this call."""

    def read(self, name: str) -> bytes:
        """All of a file that is there."""

    def create(self, name: str, content: bytes) -> bool:
        """Create a file in one step, with all of its content; False if it is there."""

    def close(self) -> None:
        """Let go of connections."""
