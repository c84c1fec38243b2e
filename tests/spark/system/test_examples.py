"""The examples run as their readers would run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.layers import ROOT


@pytest.mark.usefixtures("spark_environment")
def test_the_first_query_reads_every_order() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "examples.first_query"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "100 orders read, 100 put" in result.stdout


@pytest.mark.long
@pytest.mark.usefixtures("spark_environment")
def test_spark_goes_on_where_a_kcl_application_stopped() -> None:
    command = [sys.executable, "-m", "examples.from_kcl_to_spark"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "40 orders read, 40 were left; ready for the way back: True" in result.stdout


@pytest.mark.core("two-stage pipeline")
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark_environment")
def test_a_pipeline_of_two_stages_gives_what_pyarrow_computes(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    command = [sys.executable, "-m", "examples.two_stage_pipeline", "--departures", "500"]
    result = subprocess.run(
        [*command, "--page", str(page)], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "inferred: as kafka/airlines, through table airlines" in result.stdout
    assert "500 departures of 14 carriers: all totals are right" in result.stdout
    assert "<svg" in page.read_text()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark_environment")
def test_two_queries_share_the_shards_of_a_stream() -> None:
    command = [sys.executable, "-m", "examples.share_shards"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "each holds half" in result.stdout
    assert "records put, 0 missing, 0 read again" in result.stdout


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark_environment")
def test_planes_stay_with_their_tasks_while_a_topic_of_kafka_expands() -> None:
    command = [sys.executable, "-m", "examples.kafka_expansion", "--departures", "6000"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    for title in (
        "Two partitions",
        "Four partitions, expanded while the queries ran",
        "Eight partitions, expanded while the queries were stopped",
    ):
        assert title in result.stdout
    assert "6,000 departures of 2,052 planes: each plane in one task, in order" in result.stdout


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark_environment")
def test_a_stream_is_copied_in_order_while_the_copy_is_resharded() -> None:
    command = [sys.executable, "-m", "examples.copy_stream", "--departures", "6000"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "the copy is resharded to 16 shards" in result.stdout
    assert "6,000 departures of 2,052 planes: each once, each plane's in order" in result.stdout
