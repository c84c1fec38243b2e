"""Stored documents with one value changed, or with another order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


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


def shuffled(mapping: Mapping[K, V], random: Random) -> dict[K, V]:
    """Return the mapping in another order."""
    entries = list(mapping.items())
    random.shuffle(entries)
    return dict(entries)
