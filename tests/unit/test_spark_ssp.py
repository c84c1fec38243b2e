"""The public namespace: complete, lazy, and usable wherever an option accepts a dotted path."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import spark_ssp
from spark_ssp.checkpoint.worker_identity import Query, load_generator

SOURCE = Path(spark_ssp.__file__)


def declared() -> dict[str, str]:
    """Return the module of each name as type checkers see it."""
    (block,) = (node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    return {
        alias.name: node.module or ""
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_every_name_is_what_type_checkers_see() -> None:
    assert set(dir(spark_ssp)) == {*declared(), "__version__"}
    for name, module in declared().items():
        assert getattr(spark_ssp, name) is getattr(sys.modules[module], name)


def test_every_name_is_in_the_api_reference_once() -> None:
    pages = (SOURCE.parents[1] / "docs" / "reference").glob("*.md")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert sorted(re.findall(r"(?m)^::: spark_ssp\.(\w+)$", text)) == sorted(declared())


def test_errors_have_distinct_names_and_kinds() -> None:
    errors = [getattr(spark_ssp, name) for name in dir(spark_ssp) if name.endswith("Error")]
    kinds = [error.kind for error in errors if issubclass(error, spark_ssp.SspError)]
    assert len(kinds) > 20
    assert len(set(kinds)) == len(kinds)


def test_importing_the_namespace_imports_nothing_else() -> None:
    code = "import sys, spark_ssp; print([m for m in sys.modules if '_source' in m])"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert printed.strip() == "[]"


def test_an_option_accepts_a_dotted_path_through_the_namespace() -> None:
    query = Query(application="orders", name="clicks")
    made = load_generator("spark_ssp.HostAndQueryGenerator", query)
    assert isinstance(made, spark_ssp.HostAndQueryGenerator)
