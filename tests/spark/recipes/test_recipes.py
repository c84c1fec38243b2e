"""The recipes of the guide on local services: their rehearsals, and the tests that one of them
shows."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.architecture.layers import ROOT

# Those of `test_table_formats.py`.
_ON_ANOTHER_PYSPARK = ("delta_append", "iceberg_append")
_REHEARSALS = sorted(
    path.stem
    for path in (ROOT / "examples" / "rehearsals").glob("*.py")
    if path.stem not in _ON_ANOTHER_PYSPARK
    and "\ndef rehearse(" in path.read_text(encoding="utf-8")
)
_FAST = "windowed_counts"


@pytest.mark.parametrize(
    "name",
    [name if name == _FAST else pytest.param(name, marks=pytest.mark.long) for name in _REHEARSALS],
)
def test_a_rehearsal_succeeds(name: str, spark: SparkSession, tmp_path: Path) -> None:
    rehearsal = import_module(f"examples.rehearsals.{name}")
    assert rehearsal.rehearse(spark.newSession(), tmp_path)


@pytest.mark.long
@pytest.mark.usefixtures("spark_environment")
def test_a_rehearsal_runs_as_a_program() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "examples.rehearsals.json_records"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1,000 departures in the table, 1,000 put; 10 set aside" in result.stdout


@pytest.mark.long
@pytest.mark.usefixtures("spark_environment")
def test_the_tests_of_a_recipe_pass(tmp_path: Path) -> None:
    """As in a user's project: without this project's configuration of pytest."""
    example = ROOT / "examples" / "recipes" / "test_json_records.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    result = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(example)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 passed" in result.stdout
