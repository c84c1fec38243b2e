"""Results of the runs of one session, shown at its end."""

from __future__ import annotations

import pytest

from tests.interop.scenarios import Seconds
from tests.interop.scene import Scene
from tests.interop.verdict import judge

FINDINGS: pytest.StashKey[list[str]] = pytest.StashKey()


class Report:
    """Takes the findings of one test."""

    def __init__(self, test: str, findings: list[str]) -> None:
        self._test = test
        self._findings = findings

    def check(self, scene: Scene, seconds: Seconds, *, duplicates: int) -> None:
        """Add the findings of a scene, then check that at most `duplicates` records came twice."""
        verdict = judge(scene)
        self._findings.append(f"{self._test}: {verdict}")
        self._findings += [f"    {took:6.1f} s: {what}" for what, took in seconds.items()]
        verdict.check(duplicates=duplicates)
