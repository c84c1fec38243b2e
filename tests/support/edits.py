"""Stored documents with one value changed."""

from __future__ import annotations

import json
from typing import Any


def edited(document: str, path: list[str], value: object) -> object:
    """A JSON document with one value replaced, or dropped where it is ..."""
    whole: Any = json.loads(document)
    level = whole
    for step in path[:-1]:
        level = level[step]
    if value is ...:
        del level[path[-1]]
    else:
        level[path[-1]] = value
    return whole
