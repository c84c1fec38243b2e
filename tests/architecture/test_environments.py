"""The matrix of versions fits the lock, the declared Python versions and the marked tests."""

from __future__ import annotations

import re
import tomllib
from collections import Counter

from spark_ssp.kafka_source.reading.librdkafka import TESTED
from tests.architecture.layers import ROOT
from tests.support.environments.clients import OLDEST, VERSIONS
from tests.support.environments.matrix import MATRIX, PLATFORMS, PYSPARK_4_3, SCENARIOS, Entry
from tests.support.environments.run import as_markdown, outcomes_in, problems

_REPORT = """
<testsuites><testsuite>
  <testcase name="a"><properties><property name="scenario" value="restart"/></properties></testcase>
  <testcase name="b"><properties><property name="scenario" value="restart"/></properties>
    <skipped/></testcase>
  <testcase name="c"><properties><property name="scenario" value="Kafka sink"/></properties>
    <error/></testcase>
  <testcase name="d"><skipped/></testcase>
</testsuite></testsuites>
"""


def test_the_newest_pyspark_of_the_matrix_is_that_of_the_lock() -> None:
    lock = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")
    (found,) = re.findall(r"^pyspark==(\S+) \\\n +--hash=sha256:(\w+)$", lock, re.MULTILINE)
    assert found == (PYSPARK_4_3.version, PYSPARK_4_3.sha256)
    assert [entry.pyspark for entry in MATRIX][-1] == PYSPARK_4_3
    assert {entry.pyspark for entry in PLATFORMS} < {entry.pyspark for entry in MATRIX}


def test_the_matrix_covers_every_declared_python_and_the_lowest_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    prefix = "Programming Language :: Python :: "
    declared = {one.removeprefix(prefix) for one in project["classifiers"] if prefix + "3." in one}
    assert {entry.python for entry in MATRIX} == declared
    assert any(entry.is_lowest for entry in MATRIX)
    assert all(entry.has_tests for entry in MATRIX)


def test_the_kafka_client_is_tested_in_the_lowest_version_and_in_each_of_a_known_layout() -> None:
    lock = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")
    (locked,) = re.findall(r"^confluent-kafka==(\S+)", lock, re.MULTILINE)
    minors = [tuple(map(int, each.split(".")[:2])) for each in (*VERSIONS, locked)]
    assert minors == [*TESTED]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"confluent-kafka>={OLDEST}"' in project


def test_every_scenario_has_tests() -> None:
    sources = (ROOT / "tests" / "spark").rglob("test_*.py")
    marks = {
        mark
        for source in sources
        for mark in re.findall(r'mark\.core\("(.*)"\)', source.read_text(encoding="utf-8"))
    }
    assert marks == set(SCENARIOS)


def test_anything_but_a_pass_is_a_problem() -> None:
    outcomes = outcomes_in(_REPORT)
    assert outcomes == {"restart": Counter(passed=1, skipped=1), "Kafka sink": Counter(failed=1)}
    found = problems({**outcomes, "other": Counter(passed=1), SCENARIOS[0]: Counter(passed=2)})
    assert found[0] == "unknown scenario other"
    assert {"restart: 1 passed, 1 skipped", "Kafka sink: 1 failed"} < set(found)
    assert f"{SCENARIOS[1]}: not run" in found
    assert len(found) == len(SCENARIOS)
    assert problems({name: Counter(passed=1) for name in SCENARIOS}) == []


def test_the_table_has_a_row_for_each_scenario() -> None:
    entries = [Entry(pyspark=PYSPARK_4_3, python="3.11", is_lowest=True)]
    table = as_markdown(entries, [{"restart": Counter(passed=2)}]).splitlines()
    assert table[0] == "| scenario | PySpark 4.3.0, Python 3.11, lowest dependencies |"
    assert "| restart | 2 passed |" in table
    assert len(table) == 2 + len(SCENARIOS)
