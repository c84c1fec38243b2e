"""Files that are created whole and never changed, and where that can be had.

That is all that stores of assignments and of plans ask of a place: each write is a new file with
the next number. Of two that saw the same newest file and both create the next one, one is told.
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
"""The schemes whose storage creates a file only if it is not there, in one step, through fsspec;
and what `pipe_file` is to be told for it: `If-None-Match: *` by adlfs, `ifGenerationMatch=0` by
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
    """The files of one folder. What is raised is the implementation's to say."""

    def names(self) -> Iterable[str]:
        """The names of all files in it; none if it is not there. Not older than this call."""

    def read(self, name: str) -> bytes:
        """All of a file that is there."""

    def create(self, name: str, content: bytes) -> bool:
        """Create a file in one step, with all of its content; False if it is there."""

    def close(self) -> None:
        """Let go of connections."""
