"""CI covers the declared Python versions, and the oldest supported Java and Node."""

from __future__ import annotations

import re
import tomllib

from tests.architecture.layers import ROOT

WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
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
