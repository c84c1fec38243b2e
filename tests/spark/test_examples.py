"""The examples run as their readers would run them."""

from __future__ import annotations

import subprocess
import sys

from tests.architecture.layers import ROOT


def test_the_first_query_reads_every_order() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "examples.first_query"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "100 orders read, 100 put" in result.stdout
