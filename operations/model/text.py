"""Writes counts, durations and lags for people."""

from __future__ import annotations

from operations.model.snapshot import SourceFormat


def count_text(number: int) -> str:
    """Return a number with separators."""
    return f"{number:,}"


def duration_text(millis: int) -> str:
    """Return a duration in its two largest units, cut; below a minute in one, with a decimal below
    ten seconds."""
    if millis < 1_000:
        return f"{millis} ms"
    seconds = millis // 1_000
    if seconds < 10:
        return f"{millis // 100 / 10:.1f}".removesuffix(".0") + " s"
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3_600:
        return _in_units(seconds, 60, "m", 1, "s")
    if seconds < 48 * 3_600:
        return _in_units(seconds, 3_600, "h", 60, "m")
    return _in_units(seconds, 86_400, "d", 3_600, "h")


def _in_units(seconds: int, large: int, large_unit: str, small: int, small_unit: str) -> str:
    whole, rest = divmod(seconds, large)
    parts = rest // small
    return f"{whole} {large_unit}" + (f" {parts} {small_unit}" if parts else "")


def lag_text(lag: int | None, format_: SourceFormat) -> str:
    """Return a lag with its unit."""
    if lag is None:
        return "unknown"
    return duration_text(lag) if format_ is SourceFormat.KINESIS else f"{count_text(lag)} offsets"
