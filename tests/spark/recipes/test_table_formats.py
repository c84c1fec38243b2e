"""The recipes of Delta and Iceberg on the newest PySpark for which both are published."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from spark_ssp.testing.kafka.jars import Artifact, Bundle
from tests.architecture.layers import ROOT
from tests.support.environments.build import build_wheel, environment
from tests.support.environments.matrix import MATRIX, PYSPARK_4_1
from tests.support.servers.table_formats import DELTA, ICEBERG, class_path
from tests.support.spark.drivers import ENVIRONMENT, spark_home

_PROGRAM: Final = """
import sys
from examples.rehearsals.{name} import SETTINGS, rehearse
from examples.rehearsals.laptop import run
sys.exit(run(rehearse, settings=SETTINGS))
"""


@pytest.mark.long
@pytest.mark.timeout(1200)  # PySpark is fetched, by the first test run
@pytest.mark.parametrize(
    ("name", "library"), [("delta_append", DELTA), ("iceberg_append", ICEBERG)]
)
def test_a_rehearsal_succeeds(name: str, library: Artifact | Bundle, tmp_path: Path) -> None:
    (entry,) = (each for each in MATRIX if each.pyspark == PYSPARK_4_1)
    python = environment(entry, build_wheel(tmp_path / "dist"))
    (package,) = python.parents[1].glob("lib/python*/site-packages/pyspark")
    # The packages of the checkout would be imported instead of the wheel's.
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    variables = {
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "PYSPARK_SUBMIT_ARGS": f"--driver-class-path {class_path(library)} pyspark-shell",
        "SPARK_HOME": str(spark_home(tmp_path / "spark-home", package)),
    }
    result = subprocess.run(
        [python, "-c", _PROGRAM.format(name=name)],
        cwd=tmp_path,
        env=os.environ | ENVIRONMENT | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
