"""`kill -9` for the recipe that merges changes into a Delta table, as soon as it has merged a
batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from examples.recipes.cdc_to_delta import APPLICATION
from examples.rehearsals.cdc_to_delta import COLUMNS, changes
from examples.rehearsals.laptop import connection, put
from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.architecture.layers import ROOT
from tests.support.spark.drivers import Driver
from tests.support.spark.queries import wait_until

_STREAM = "plane-changes"
_KILLS = 3


@pytest.mark.long
@pytest.mark.usefixtures("spark_environment")
def test_each_batch_is_merged_once(kinesis: EmbeddedKinesis, tmp_path: Path) -> None:
    table = tmp_path / "output-0"
    state: dict[str, dict[str, Any]] = {}
    DeltaTable.create(table, COLUMNS)
    kinesis.state.create_stream(_STREAM, shards=2)
    options = connection(kinesis) | {"maxRecordsPerTrigger": "300"}

    def driver() -> Driver:
        program = ROOT / "tests" / "spark" / "programs" / "merge_changes.py"
        return Driver(tmp_path, [options], program=program)

    for kill in range(_KILLS):
        put(kinesis, _STREAM, changes(state, seed=kill), key="tailnum")
        before = DeltaTable(table).version()
        with driver() as running:
            # Spark commits the batch after the table: most likely it has not yet.
            wait_until(
                lambda: DeltaTable(table).version() > before or not running.alive,  # noqa: B023
                "another batch is merged",
            )
            assert "java" in running.kill(), running.log
        kinesis.state.scale(_STREAM, 3 + kill)

    with driver() as running:
        wait_until(
            lambda: _rows(table) == [state[key] for key in sorted(state)] or not running.alive,
            "all changes are merged",
        )
    assert _rows(table) == [state[key] for key in sorted(state)], running.log
    # A batch without records, as after a reshard, changes nothing, and Delta commits nothing.
    merged = _merged_batches(table)
    assert len(merged) >= _KILLS
    assert merged == sorted(set(merged))


def _merged_batches(table: Path) -> list[int]:
    """Return the number of the batch of each merge, in the order of the table's versions."""
    lines = [
        json.loads(line)
        for commit in sorted((table / "_delta_log").glob("*.json"))
        for line in commit.read_text(encoding="utf-8").splitlines()
    ]
    transactions = [line["txn"] for line in lines if "txn" in line]
    assert {one["appId"] for one in transactions} == {APPLICATION}
    merges = [line for line in lines if line.get("commitInfo", {}).get("operation") == "MERGE"]
    assert len(merges) == len(transactions)
    return [one["version"] for one in transactions]


def _rows(table: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(table).to_pyarrow_table().sort_by("tailnum").to_pylist()
    return rows
