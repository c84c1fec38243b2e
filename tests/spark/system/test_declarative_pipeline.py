"""The example of a Spark Declarative Pipeline on the versions that have them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.layers import ROOT
from tests.support.environments.build import build_wheel, environment
from tests.support.environments.matrix import MATRIX, PYSPARK_4_1, PYSPARK_4_2, PYSPARK_4_3, PySpark
from tests.support.spark.drivers import FREE_CONNECT_PORT

_EXAMPLE = Path("examples", "declarative_pipeline")


@pytest.mark.long
@pytest.mark.timeout(1200)  # PySpark is fetched, by the first test run
@pytest.mark.usefixtures("spark_environment")
@pytest.mark.parametrize(
    "pyspark", [PYSPARK_4_1, PYSPARK_4_2, PYSPARK_4_3], ids=lambda one: one.version
)
def test_each_run_continues_and_repeats_nothing(pyspark: PySpark, tmp_path: Path) -> None:
    if pyspark == PYSPARK_4_3:
        python = sys.executable
        folder = ROOT
    else:
        (entry,) = (each for each in MATRIX if each.pyspark == pyspark)
        python = str(environment(entry, build_wheel(tmp_path / "dist")))
        # The packages of the checkout would be imported instead of the wheel's.
        folder = tmp_path / "checkout"
        shutil.copytree(ROOT / _EXAMPLE, folder / _EXAMPLE)
    variables = os.environ | FREE_CONNECT_PORT
    result = subprocess.run(
        [python, "-m", "examples.declarative_pipeline"],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "first run: 50 orders in the table, 50 put" in result.stdout
    if pyspark != PYSPARK_4_1:
        assert "second run: 100 orders in the table, 100 put" in result.stdout
    assert "third run: 100 orders in the table, 100 put" in result.stdout
    assert "50 large orders in the topic, 50 put" in result.stdout
