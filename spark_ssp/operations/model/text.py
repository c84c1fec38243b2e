"""Writes counts and lags for people."""

from __future__ import annotations

from spark_ssp.common.times import duration_text
from spark_ssp.operations.model.snapshot import SourceFormat


def count_text(number: int) -> str:
    """Return a number with separators."""
    return f"{number:,}"


def lag_text(lag: int | None, format_: SourceFormat) -> str:
    """Return a lag with its unit."""
    if lag is None:
        return "unknown"
    return duration_text(lag) if format_ is SourceFormat.KINESIS else f"{count_text(lag)} offsets"
