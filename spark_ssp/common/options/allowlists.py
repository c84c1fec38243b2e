"""Checks the limits that the owner of a driver sets on options that name code or files.

An option can name a class, which the driver imports and calls, or a file, which it reads and may
send elsewhere. That is safe if the user who sets the options also starts the driver. On a shared
Spark Connect server it lets a client act as the server's user. Two variables in the server's
environment, which a client cannot change, restrict it: without them everything is allowed, with
them only the listed classes and paths.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from spark_ssp.common.options.spec import BadValueError, Fault, shown

CLASSES: Final = "SPARK_SSP_ALLOWED_CLASSES"
"""Dotted paths of classes and functions, comma separated; `my_company.ids.*` is every one of the
module."""
PATHS: Final = "SPARK_SSP_ALLOWED_PATHS"
"""Folders whose files may be named, separated by colons."""


def is_restricted(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the owner has set either variable."""
    return CLASSES in environment or PATHS in environment


def check_class(dotted_path: str, environment: Mapping[str, str] = os.environ) -> None:
    """Raise BadValueError for a class or function that is not listed."""
    if CLASSES not in environment:
        return
    module = dotted_path.rpartition(".")[0]
    allowed = {entry.strip() for entry in environment[CLASSES].split(",")}
    if allowed.isdisjoint({dotted_path, f"{module}.*"}):
        raise BadValueError(
            Fault(
                found=f"{shown(dotted_path)}, which this driver does not allow",
                expected=f"a class or function that {CLASSES} lists",
                next_step=f"ask the owner of the driver to add it to {CLASSES}, or use another",
            )
        )


def check_path(path: str, environment: Mapping[str, str] = os.environ) -> None:
    """Raise BadValueError for a file or folder that is outside the folders listed."""
    if PATHS not in environment:
        return
    real = os.path.realpath(path)
    folders = [os.path.realpath(one) for one in environment[PATHS].split(os.pathsep) if one]
    if not any(os.path.commonpath([real, folder]) == folder for folder in folders):
        raise BadValueError(
            Fault(
                found=f"{shown(path)}, which this driver does not allow",
                expected=f"a path in a folder that {PATHS} lists",
                next_step=f"ask the owner of the driver to add its folder to {PATHS}, or use "
                "another file",
            )
        )
