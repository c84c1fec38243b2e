"""Writes counts, durations and lags for people."""

from __future__ import annotations

from typing import Final

from operations.model.snapshot import SourceFormat

_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))


def count(number: int) -> str:
    """Return a number with separators."""
    return f"{number:,}"


def duration(millis: int) -> str:
    """Return a duration in its largest unit, below 10 with a decimal."""
    for size, unit in _UNITS:
        if millis >= size:
            value = millis / size
            digits = f"{value:.1f}".removesuffix(".0") if value < 10 else f"{value:.0f}"
            return f"{digits} {unit}"
    return "0 ms"


def lag_text(lag: int | None, format_: SourceFormat) -> str:
    """Return a lag with its unit."""
    if lag is None:
        return "unknown"
    return duration(lag) if format_ is SourceFormat.KINESIS else f"{count(lag)} offsets"
