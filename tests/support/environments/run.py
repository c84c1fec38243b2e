"""Run the scenarios with every version of PySpark: `python -m tests.support.environments.run`.
Prints a table of versions and scenarios, and fails if a scenario has failed, was skipped or is
absent on any version. `--pyspark 4.0.2` runs only that version."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.support.environments.build import build_wheel, environment
from tests.support.environments.matrix import MATRIX, SCENARIOS, Entry
from tests.support.servers.cache import CACHE

_ROOT: Final = Path(__file__).resolve().parents[3]
_PARTS: Final = ("tests", "examples", "benchmarks")
"""The parts of the checkout that the tests need, without the product, which is the wheel's."""

_TABLE: Final = CACHE / "environments" / "matrix.md"

Outcomes = Mapping[str, Counter[str]]
"""The number of tests that passed, failed or were skipped, for each scenario."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the scenarios with every version of PySpark.")
    parser.add_argument("--pyspark", action="append", help="only this version")
    parser.add_argument("--processes", default="2", help="parallel test processes (default: 2)")
    given = parser.parse_args()
    chosen = [one for one in MATRIX if given.pyspark in (None, []) or _is_one(one, given.pyspark)]
    if not chosen:
        parser.error(f"expected one of {', '.join(one.pyspark.version for one in MATRIX)}")
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder))
        # All first: an interpreter that is absent is reported before any test has run.
        pythons = [environment(entry, wheel) for entry in chosen]
    measured = [
        _measure(entry, python, given.processes)
        for entry, python in zip(chosen, pythons, strict=True)
    ]
    table = as_markdown(chosen, measured)
    _TABLE.write_text(table, encoding="utf-8")
    print(table)
    wrong = [
        f"PySpark {entry.pyspark.version}: {problem}"
        for entry, outcomes in zip(chosen, measured, strict=True)
        for problem in problems(outcomes)
    ]
    if wrong:
        sys.exit("\n".join(wrong))


def _is_one(entry: Entry, versions: Sequence[str]) -> bool:
    return entry.pyspark.version in versions


def _measure(entry: Entry, python: Path, processes: str) -> Outcomes:
    """Run the scenarios in the environment, out of a folder without the product's packages."""
    folder = CACHE / "environments" / entry.name / "checkout"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for part in _PARTS:
        shutil.copytree(_ROOT / part, folder / part)
    shutil.copy(_ROOT / "pyproject.toml", folder)
    (folder / ".cache").symlink_to(CACHE)
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ours |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    _check_origin(python, folder, ours)
    report = folder.with_name("report.xml")
    report.unlink(missing_ok=True)
    print(f"--- PySpark {entry.pyspark.version}, Python {entry.python}", flush=True)
    command = [str(python), "-m", "pytest", "--quiet", "-m", "core and not soak", "--durations=5"]
    parallel = ["--numprocesses", processes, "--dist", "worksteal", f"--junitxml={report}"]
    result = subprocess.run([*command, *parallel, "tests/spark"], cwd=folder, env=ours, check=False)
    if not report.exists():
        sys.exit(f"PySpark {entry.pyspark.version}: pytest ended with {result.returncode}")
    outcomes = outcomes_in(report.read_text(encoding="utf-8"))
    if result.returncode != 0 and not problems(outcomes):
        sys.exit(f"PySpark {entry.pyspark.version}: pytest ended with {result.returncode}")
    return outcomes


def _check_origin(python: Path, folder: Path, environment: Mapping[str, str]) -> None:
    """Check that the product in the tests is the wheel's."""
    program = (
        "import pathlib, spark_ssp, sys\n"
        "assert pathlib.Path(spark_ssp.__file__).is_relative_to(sys.prefix), spark_ssp.__file__"
    )
    subprocess.run([str(python), "-c", program], cwd=folder, env=environment, check=True)


def outcomes_in(report: str) -> Outcomes:
    """Return the outcomes of a report in JUnit's format."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for case in ET.fromstring(report).iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        outcome = "passed" if not kinds else "skipped" if kinds == {"skipped"} else "failed"
        for each in case.iter("property"):
            if each.get("name") == "scenario":
                found[each.get("value", "")][outcome] += 1
    return found


def problems(outcomes: Outcomes) -> list[str]:
    """Return the reasons for which these outcomes are no success."""
    unknown = [f"unknown scenario {name}" for name in outcomes if name not in SCENARIOS]
    return unknown + [
        f"{name}: {_in_words(outcomes.get(name, Counter()))}"
        for name in SCENARIOS
        if set(outcomes.get(name, ())) != {"passed"}
    ]


def as_markdown(entries: Sequence[Entry], measured: Sequence[Outcomes]) -> str:
    """Return the table, with a column for each environment."""
    heads = [
        f"PySpark {entry.pyspark.version}, Python {entry.python}"
        + (", lowest dependencies" if entry.is_lowest else "")
        for entry in entries
    ]
    rows = [
        [name, *(_in_words(outcomes.get(name, Counter())) for outcomes in measured)]
        for name in SCENARIOS
    ]
    lines = [["scenario", *heads], ["---"] * (len(heads) + 1), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _in_words(outcome: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(outcome.items())) or "not run"


if __name__ == "__main__":
    main()
