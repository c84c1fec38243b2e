"""Where in the user's code an operator was asked for."""

from __future__ import annotations

import inspect
import ntpath
import posixpath
from typing import Final

from pipeline_planner.problems import Place

_PACKAGE: Final = __name__.partition(".")[0]


def calling_place() -> Place | None:
    """The nearest line on the stack that is not this package's; None where Python cannot tell."""
    frame = inspect.currentframe()
    while frame is not None and _is_own(frame.f_globals.get("__name__")):
        frame = frame.f_back
    if frame is None:
        return None
    # The last part only: the rest differs from machine to machine.
    file = posixpath.basename(ntpath.basename(frame.f_code.co_filename))
    return Place(file=file, line=frame.f_lineno)


def _is_own(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == _PACKAGE
