"""CI covers the declared Python versions, and the oldest supported Java and Node. The tests that it
leaves out are run by a command."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.architecture.layers import ROOT

WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
MACHINE = (ROOT / ".ci" / "machine").read_text(encoding="utf-8")


def test_the_matrix_is_every_declared_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    prefix = "Programming Language :: Python :: 3."
    declared = [one.removeprefix(prefix) for one in project["classifiers"] if prefix in one]
    (matrix,) = re.findall(r"python: \[(.*)\]", WORKFLOW)
    assert re.findall(r'"3\.(\d+)"', matrix) == declared
    assert project["requires-python"] == f">=3.{declared[0]}"


def test_java_and_node_are_the_oldest_supported() -> None:
    oldest = dict(re.findall(r'need "(\w+)[^"]*" ([\d.]+)', MACHINE))
    assert re.findall(r'java-version: "(\d+)"', WORKFLOW) == [oldest["Java"]]
    assert re.findall(r'node-version: "(\d+)"', WORKFLOW) == [oldest["Node"]]


def test_the_workflow_runs_the_script_that_a_clone_can_run() -> None:
    assert re.findall(r"- run: (.*)", WORKFLOW) == [".ci/run"]


@pytest.mark.parametrize(
    ("marker", "command"),
    [("interop", "interop"), ("long", "long"), ("release", "release-check"), ("soak", "soak")],
)
def test_tests_that_ci_leaves_out_are_run_by_a_command(marker: str, command: str) -> None:
    (recipe,) = re.findall(rf"^{command}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    run = tuple(re.findall(r"tests/[\w/.]+", recipe))
    marked = [
        str(path.relative_to(ROOT))
        for folder in sorted((ROOT / "tests").iterdir())
        if folder.is_dir() and folder.name != "support"
        for path in sorted(folder.rglob("*.py"))
        if re.search(rf"pytest\.mark\.{marker}\b", path.read_text(encoding="utf-8"))
    ]
    assert marked
    assert [file for file in marked if not file.startswith(run)] == []
