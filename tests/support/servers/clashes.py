"""A folder of files and packages named like everything of the product, as a job's folder may be."""

from __future__ import annotations

import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final

from tests.architecture.layers import TOP_LEVEL
from tests.architecture.modules import distributed_modules

_EARLIER: Final = frozenset(
    {"embedded_kinesis", "local_kafka", "pipeline_planner", "ssp_common", "task_grouping"}
)
"""Top-level packages of earlier builds."""


def write_clashes(folder: Path) -> set[str]:
    """Write a file, or a package, of each name; importing one is an error. Return the names. Left
    out are names that Python or a dependency has at the top, with which a job breaks by itself, and
    those that Spark imports from any folder."""
    parts = [module.import_name.split(".") for module in distributed_modules()]
    names = {name for dotted in parts for name in dotted} | _EARLIER | {"tests", "utils"}
    names -= {*TOP_LEVEL, "__main__", *sys.stdlib_module_names, *packages_distributions()}
    names = {name for name in names if not name.startswith("pyspark_")}
    packages = {name for dotted in parts for name in dotted[:-1]}
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = folder / name / "__init__.py" if name in packages else folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"raise ImportError('{name} of the job')\n")
    return names
