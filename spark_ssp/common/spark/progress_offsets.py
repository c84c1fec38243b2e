"""Offsets and statuses in a query's progress report, as documents."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any, Final

Status = dict[str, Any]
"""The JSON document that a reader of this package reports: in the progress under `latestOffset`."""

_MARKS: Final = ("maxMillisBehindLatest", "maxOffsetsBehindLatest")


def parsed(offset: Any) -> Any:
    """Return an offset of a progress report: JSON text or a parsed document; before PySpark 4.2 the
    text of a Python value."""
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except ValueError:
        return ast.literal_eval(offset)


def is_status(document: Any) -> bool:
    """Return whether a document is a status: a Kinesis source's has an entry for each stream."""
    if not isinstance(document, dict):
        return False
    nested = [one for one in document.values() if isinstance(one, dict)]
    return any(mark in one for one in (document, *nested) for mark in _MARKS)


def lacks_status(source: Mapping[str, Any]) -> bool:
    """Return whether a source's part of a progress report repeats the end offset where a status
    could be, as before PySpark 4.2."""
    end = parsed(source["endOffset"])
    return isinstance(end, dict) and parsed(source["latestOffset"]) == end


def status_in(source: Mapping[str, Any]) -> Status | None:
    """Return the status in a source's part of a progress report; None if it contains none."""
    document = parsed(source["latestOffset"])
    return document if is_status(document) else None
