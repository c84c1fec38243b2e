"""Results of the runs of one session, shown at its end."""

from __future__ import annotations

import pytest

from tests.interop.scenarios import Seconds
from tests.interop.verdict import Verdict

FINDINGS: pytest.StashKey[list[str]] = pytest.StashKey()


class Report:
    """Takes the findings of one test."""

    def __init__(self, test: str, findings: list[str]) -> None:
        self._test = test
        self._findings = findings

    def add(self, seconds: Seconds, verdict: Verdict) -> None:
        self._findings.append(f"{self._test}: {verdict}")
        self._findings += [f"    {took:6.1f} s: {what}" for what, took in seconds.items()]
