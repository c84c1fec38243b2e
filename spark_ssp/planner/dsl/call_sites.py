"""Finds the line of the user's code that created an operator."""

from __future__ import annotations

import inspect
import ntpath
import os
from pathlib import Path
from typing import Final

from spark_ssp.planner.graph.errors import SourceLocation

_PACKAGE: Final = __name__.partition(".")[0]


def find_call_site() -> SourceLocation | None:
    """Return the nearest stack line outside this package; None where Python has no frames."""
    frame = inspect.currentframe()
    while frame is not None and _is_own(frame.f_globals.get("__name__")):
        frame = frame.f_back
    if frame is None:
        return None
    return SourceLocation(file=shown(frame.f_code.co_filename), line=frame.f_lineno)


def shown(file: str) -> str:
    """Return a file relative to the working directory if it is below it, else only its last part,
    since the rest differs between machines. The same holds if the working directory is the root of
    the file system or a home directory."""
    try:
        # A path that is absolute only on another operating system is below no folder here.
        if os.path.isabs(file) or not ntpath.isabs(file):
            folder = Path.cwd()
            if folder not in (Path(folder.anchor), Path(os.path.expanduser("~"))):
                return Path(os.path.abspath(file)).relative_to(folder).as_posix()
    except (OSError, ValueError):
        pass  # the directory is gone, or not above the file
    return os.path.basename(ntpath.basename(file))


def _is_own(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == _PACKAGE
