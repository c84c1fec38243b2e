"""Runs in each Python process that has this folder on its path, by its name: see
`watched_imports.py`."""

from __future__ import annotations

import os
import sys
from typing import Any

_FILE = os.environ["SSP_IMPORTS"]


def _record(what: str) -> None:
    with open(_FILE, "a", encoding="utf-8") as imports:
        imports.write(f"{what} {' '.join(sys.orig_argv)}\n")


class _Watch:
    """Finds no module; records imports of pandas."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            _record("pandas")


_finders: list[Any] = sys.meta_path
_finders.insert(0, _Watch())
_record("started")
