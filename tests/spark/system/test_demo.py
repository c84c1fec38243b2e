"""The demo in small, as `make demo` runs it in full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.layers import ROOT

DEPARTURES = 20_000

pytestmark = pytest.mark.usefixtures("spark_environment")


@pytest.mark.core("demo promises")
@pytest.mark.timeout(600)
def test_the_demo_keeps_every_promise(tmp_path: Path) -> None:
    folder = tmp_path / "demo-output"
    result = subprocess.run(
        [
            *(sys.executable, "-m", "examples.flights"),
            *("--departures", str(DEPARTURES), "--output", str(folder)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"each of the {DEPARTURES:,} departures exactly once" in result.stdout
    assert "Every promise was kept" in result.stdout
    assert "BROKEN" not in result.stdout
    assert result.stderr == ""  # Spark's own words are in the log
    assert "WARN" not in result.stdout
    assert {"departures", "malformed", "checkpoint", "spark.log"} <= {
        path.name for path in folder.iterdir()
    }
    assert "Live page: http://127.0.0.1:" in result.stdout
    page = (folder / "live-page.html").read_text(encoding="utf-8")
    assert page.count('class="lane"') == 4
    assert page.count('class="fork"') >= 4  # two splits at least


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine", encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "examples.flights", "--output", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert "name another --output" in result.stderr
    assert precious.read_text(encoding="utf-8") == "mine"
