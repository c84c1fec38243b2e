"""`spark-ssp plan` on files that define a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.operations.command import WIDTHS, check_output, run

OUTPUTS = Path(__file__).parent / "outputs"
PIPELINE = '''
from spark_ssp.planner import Pipeline, Services
from spark_ssp.planner.graph.operators import SystemKind


class Known:
    """A system with known streams."""

    kind = SystemKind.KAFKA

    def partition_count(self, stream):
        return {"orders": 8, "customers": 8}.get(stream)


services = Services({"kafka": Known()})


def pipeline():
    shop = Pipeline("shop")
    customers = shop.table("customers", key="customer")
    customers.side_input(shop.input("kafka", "customers"))
    (
        shop.input("kafka", "orders")
        .join_table(customers)
        .partition_by("country")
        .output("kafka", "totals")
    )
    return shop


planned = pipeline().plan(services)
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.py"
    path.write_text(PIPELINE)
    return path


@pytest.mark.parametrize("columns", WIDTHS)
def test_output(file: Path, columns: int) -> None:
    found = run("plan", str(file), columns=columns)
    assert found.code == 0, found.err
    check_output(OUTPUTS / f"plan-{columns}.txt", found.out, {str(file): "shop.py"})


def test_forms(file: Path) -> None:
    assert run("plan", str(file), "--format", "mermaid").out.startswith("flowchart")
    assert run("plan", str(file), "--format", "page").out.startswith("<!")
    assert run("plan", str(file), "--json").document()["pipeline"] == "shop"
    assert run("plan", str(file), "--pipeline", "planned").out == run("plan", str(file)).out


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("pipeline = 3", "pipeline of type int"),
        ("x = 3", "no pipeline"),
        ("x = 1\nraise ValueError('s3cr3t')", "ValueError in line 2"),
        ("import nothing_like_this", "ModuleNotFoundError in line 1"),
        ("import sys\nsys.exit(0)", "SystemExit in line 2"),
        ("x = (", "SyntaxError"),
        ("def pipeline():\n    raise KeyError('s3cr3t')", "KeyError in line 2"),
        ("def pipeline():\n    import nothing_like_this", "ModuleNotFoundError in line 2"),
        ("def pipeline():\n    exit(0)", "SystemExit in line 2"),
        ("def pipeline(name): ...", "TypeError"),
        ("class pipeline:\n    def __init__(self):\n        1 / 0", "ZeroDivisionError in line 3"),
    ],
)
def test_files_without_a_pipeline(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "shop.py"
    path.write_text(text)
    found = run("plan", str(path))
    assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)
    assert part in found.err
    assert "s3cr3t" not in found.err
    assert "[invalid-request]" in found.err


def test_a_function_that_imports_a_module_beside_the_file(file: Path) -> None:
    (file.parent / "brokers_of_a_shop.py").write_text("count = 8")
    function = "def pipeline():\n    import brokers_of_a_shop\n"
    file.write_text(PIPELINE.replace("def pipeline():\n", function).replace("planned =", "#"))
    assert run("plan", str(file)).code == 0


def test_services_that_fail(file: Path) -> None:
    text = PIPELINE.replace('services = Services({"kafka": Known()})', "def services(): 1 / 0")
    file.write_text(text.replace("planned =", "#"))
    found = run("plan", str(file))
    assert (found.code, found.out) == (2, "")
    assert "[invalid-request]" in found.err
    assert "ZeroDivisionError in line" in found.err


def test_an_invalid_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "shop.py"
    text = PIPELINE.replace('{"kafka": Known()}', "{}")
    path.write_text(text.replace("planned = ", "# "))
    found = run("plan", str(path))
    assert found.code == 2
    assert "system kafka" in found.err
