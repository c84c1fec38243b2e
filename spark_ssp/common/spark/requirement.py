"""The requirements of this package: PySpark, RocksDB for state, the packages of its extras."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final

from spark_ssp.common.errors import UnsupportedError


def pyspark_error() -> UnsupportedError:
    """Return the error for an import of PySpark's data source API that failed."""
    found = pyspark_version()
    return UnsupportedError(
        "PySpark",
        found="no PySpark in this Python environment"
        if found is None
        else f"PySpark {found}, which has no data sources in Python",
        expected="PySpark 4.0 or newer",
        next_step="on a platform that provides Spark, run the program there with its Python; "
        f"elsewhere {install_step('pyspark')}"
        if found is None
        else "use Spark 4.0 or newer; unset SPARK_HOME if it names an older one than the PySpark "
        "that pip has installed",
    )


def pyspark_version() -> str | None:
    """Return the version of the module, None without one: another than pip's may be first on the
    path."""
    try:
        found: object = getattr(importlib.import_module("pyspark"), "__version__", None)
        return version("pyspark") if found is None else str(found)
    except (ModuleNotFoundError, PackageNotFoundError):
        return None


# The state store provider that `transformWithState` requires, for deduplication and tables.
PROVIDER_SETTING: Final = "spark.sql.streaming.stateStore.providerClass"
PROVIDER: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def is_rocksdb(provider: str | None) -> bool:
    """Return whether a provider is RocksDB: Spark's class, or a vendor's of the same name."""
    return provider is not None and provider.rpartition(".")[2] == PROVIDER.rpartition(".")[2]


def missing_module(user: str, error: ModuleNotFoundError) -> UnsupportedError:
    """Return the error for a module of another package that `user` imports."""
    return UnsupportedError(
        user,
        found=f"no module {error.name} for the Python at {sys.executable}",
        expected="the packages that spark-ssp requires, installed for this Python",
        next_step=f"run {shlex.quote(sys.executable)} -m pip check, which names what is missing, "
        "and install it",
    )


def missing_extra(user: str, extra: str, *packages: str | None) -> UnsupportedError:
    """Return the error for packages of an extra that `user` needs. A package may be the name of a
    module, as in a ModuleNotFoundError."""
    names = [(name or "").partition(".")[0] for name in packages]
    return UnsupportedError(
        user,
        found=f"no package {', '.join(names)} in this Python environment",
        expected=f"the packages of the extra {extra}, where this program runs",
        next_step=install_step(extra),
    )


def install_step(extra: str) -> str:
    """Return the command that installs the packages of an extra: by their names, since spark-ssp
    may be installed from a wheel or a checkout, or by a platform."""
    marker = re.compile(rf"""extra == ['"]{extra}['"]""")
    try:
        found = [one.partition(";") for one in requires("spark-ssp") or ()]
    except PackageNotFoundError:
        return f"install spark-ssp with its extra {extra}"
    packages = [name.strip() for name, _, condition in found if marker.search(condition)]
    return f"pip install {shlex.join(packages)}"
