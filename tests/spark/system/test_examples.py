"""The examples run as their readers would run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.layers import ROOT

LONG = pytest.mark.long
PLANES = "6,000 departures of 2,052 planes: "


def _output(*command: str) -> str:
    run = [sys.executable, "-m", *command]
    result = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark_environment")
@pytest.mark.parametrize(
    ("command", "results"),
    [
        ("first_query", ["100 orders read, 100 put"]),
        pytest.param(
            "from_kcl_to_spark",
            ["40 orders read, 40 were left", "ready for the way back: True"],
            marks=LONG,
        ),
        pytest.param(
            "share_shards",
            ["each holds half", "records put, 0 missing, 0 read again"],
            marks=LONG,
        ),
        pytest.param(
            "kafka_expansion --departures 6000",
            ["Two partitions", "Four partitions, ", "Eight partitions, ", PLANES + "each plane in"],
            marks=LONG,
        ),
        pytest.param(
            "copy_stream --departures 6000",
            ["resharded to 16 shards", PLANES + "each once, each plane's in order"],
            marks=LONG,
        ),
    ],
)
def test_an_example_reaches_its_results(command: str, results: list[str]) -> None:
    name, *arguments = command.split()
    output = _output(f"examples.{name}", *arguments)
    assert [result for result in results if result not in output] == []


@pytest.mark.core("two-stage pipeline")
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark_environment")
def test_a_pipeline_of_two_stages_gives_what_pyarrow_computes(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    output = _output("examples.two_stage_pipeline", "--departures", "500", "--page", str(page))
    assert "inferred: as kafka/airlines, through table airlines" in output
    assert "500 departures of 14 carriers: all totals are right" in output
    assert "<svg" in page.read_text()
