"""The recipes of the guide on local services: their rehearsals, and the tests that one of them
shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples.recipes.start_after_table import start_after
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


def test_a_position_after_a_table_is_in_the_last_record_after_its_last_row(
    spark: SparkSession,
) -> None:
    """Of the last aggregated record with the user records 0 to 9, the table lacks number 3."""
    rows: list[tuple[str, str, int | None]] = [("a", "99", sub) for sub in range(20)]
    rows += [("a", "100", sub) for sub in range(10) if sub != 3]
    rows += [("b", "7", None), ("b", "7", None)]
    table = spark.createDataFrame(
        rows, "shardId string, sequenceNumber string, subSequenceNumber bigint"
    )
    assert json.loads(start_after(table)) == {
        "a": {"after_sequence_number": "100", "sub_sequence_number": 9},
        "b": {"after_sequence_number": "7", "sub_sequence_number": 1},
        "default": "trim_horizon",
    }
    # As the tables of Hive and Glue have them.
    lower = table.toDF(*map(str.lower, table.columns))
    assert json.loads(start_after(lower)) == json.loads(start_after(table))
    complete = table.where("sequenceNumber = '99'").drop("subSequenceNumber")
    assert json.loads(start_after(complete)) == {
        "a": {"after_sequence_number": "99", "sub_sequence_number": 19},
        "default": "trim_horizon",
    }
