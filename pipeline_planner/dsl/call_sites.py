"""Where in the user's code an operator was asked for."""

from __future__ import annotations

import inspect
import ntpath
import os
from pathlib import Path
from typing import Final

from pipeline_planner.graph.errors import SourceLocation

_PACKAGE: Final = __name__.partition(".")[0]


def find_call_site() -> SourceLocation | None:
    """The nearest line on the stack that is not this package's; None where Python cannot tell."""
    frame = inspect.currentframe()
    while frame is not None and _is_own(frame.f_globals.get("__name__")):
        frame = frame.f_back
    if frame is None:
        return None
    return SourceLocation(file=shown(frame.f_code.co_filename), line=frame.f_lineno)


def shown(file: str) -> str:
    """A file as users find it: from the working directory, if it lies below; else its last part
    alone, since the rest differs from machine to machine. Below the root of all files and a home
    lies what is the machine's own: there it is the last part, too."""
    try:
        # What is absolute on another system alone is below nothing here.
        if os.path.isabs(file) or not ntpath.isabs(file):
            folder = Path.cwd()
            if folder not in (Path(folder.anchor), Path(os.path.expanduser("~"))):
                return Path(os.path.abspath(file)).relative_to(folder).as_posix()
    except (OSError, ValueError):
        pass  # the directory is gone, or not above the file
    return os.path.basename(ntpath.basename(file))


def _is_own(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == _PACKAGE
