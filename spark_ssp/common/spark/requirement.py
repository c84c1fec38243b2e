"""The error for an environment without the PySpark that this package needs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from spark_ssp.common.errors import UnsupportedError


def pyspark_error() -> UnsupportedError:
    """Return the error for an import of PySpark's data source API that failed."""
    try:
        found = f"PySpark {version('pyspark')}, which has no data sources in Python"
    except PackageNotFoundError:
        found = "no PySpark in this Python environment"
    return UnsupportedError(
        "PySpark",
        found=found,
        expected="PySpark 4.0 or newer",
        next_step="on a platform that provides Spark, run the program there with its Python; "
        "elsewhere pip install 'spark-ssp[pyspark]'",
    )
