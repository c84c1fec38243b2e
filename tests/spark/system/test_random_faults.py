"""A history of each scene under random faults. `tests.support.random_faults` runs more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.random_faults import FAULTS, rehearse


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scene", FAULTS)
def test_a_history_under_random_faults(scene: str, tmp_path: Path) -> None:
    (history,) = rehearse([17], [scene], tmp_path)
    assert len(history.marks) == len(history.steps)
    assert history.findings.is_right, (history.findings, *history.timeline())
