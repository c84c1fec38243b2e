"""The alert rules, run by Prometheus's own tool over invented series."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.layers import ROOT

_RULES = ROOT / "docs" / "guide" / "prometheus-alerts.yaml"
_SCENARIOS = Path(__file__).with_name("alert_scenarios.yaml")


@pytest.mark.long
def test_every_alert_fires_in_its_scenario(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    assert promtool, "this test needs promtool: the package prometheus of Debian or Ubuntu"
    shutil.copy(_RULES, tmp_path / "alerts.yaml")
    shutil.copy(_SCENARIOS, tmp_path)
    for arguments in (["check", "rules", "alerts.yaml"], ["test", "rules", _SCENARIOS.name]):
        found = subprocess.run(
            [promtool, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stdout + found.stderr
