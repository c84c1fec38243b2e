"""The support matrix of the guide has the versions and scenarios of the tests."""

from __future__ import annotations

from tests.architecture.layers import ROOT
from tests.support.environments.matrix import MATRIX, SCENARIOS


def rows() -> dict[str, list[str]]:
    """Return the cells of each row, by its first cell."""
    text = (ROOT / "docs" / "guide" / "compatibility.md").read_text(encoding="utf-8")
    section = text.split("\n## Supported versions\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


def test_the_columns_are_the_tested_environments() -> None:
    heads, *_ = rows().values()
    releases = [entry.pyspark.version for entry in MATRIX]
    assert heads == [*(f"Spark {release[:3]}" for release in releases), "scenarios"]
    assert rows()["tested release"] == [*releases, ""]
    assert rows()["tested with Python"] == [*(str(entry.python) for entry in MATRIX), ""]


def test_the_rows_name_every_scenario_once() -> None:
    named = [name for *_, cell in rows().values() for name in cell.split(", ")]
    of_tests = [name for name in named if name not in ("", "scenarios", "---")]
    assert sorted(of_tests) == sorted(SCENARIOS)
