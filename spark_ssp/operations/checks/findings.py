"""Findings of checks: what was found, and its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spark_ssp.common.errors import InvalidOptionsError, SspError


class Level(StrEnum):
    """The weight of a finding."""

    OK = "ok"
    NOTE = "note"
    """Nothing is wrong, or it cannot be checked from here."""
    WARNING = "warning"
    PROBLEM = "problem"
    """A query would fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    check: str
    level: Level
    found: str
    remedy: str | None = None


def findings_of(check: str, error: SspError, level: Level = Level.PROBLEM) -> list[Finding]:
    """Return a finding for each problem of an error."""
    if isinstance(error, InvalidOptionsError):
        return [
            Finding(
                check=check,
                level=level,
                found=f"{problem.option}: {problem.found}; expected {problem.expected}",
                remedy=problem.next_step,
            )
            for problem in error.problems
        ]
    return [
        Finding(
            check=check,
            level=level,
            found=f"{error.subject}: {error.found}; expected {error.expected}",
            remedy=error.next_step,
        )
    ]
