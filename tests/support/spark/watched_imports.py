"""Detects Python processes of a separate Spark process that import pandas. Not for the session that
tests share: others may have left workers there that did."""

from __future__ import annotations

from pathlib import Path

from tests.support.kinesis.fan_out_mode import EVERY_PROCESS, python_path

_ROOT = Path(__file__).resolve().parents[3]

WORKER = "pyspark.worker"
"""The process that runs tasks."""
PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
"""The process that asks the source for offsets."""


def watched(folder: Path) -> dict[str, str]:
    """Return the environment of processes that record their imports in `folder`."""
    path = python_path(EVERY_PROCESS, _ROOT)
    return {**path, "SSP_IMPORTS": str(folder / "imports")}


def check_no_pandas(folder: Path) -> None:
    """Check that there were processes of both kinds, and that no process imported pandas."""
    lines = (folder / "imports").read_text(encoding="utf-8").splitlines()
    for kind in (WORKER, PLANNER):
        of_kind = [line for line in lines if kind in line.split()]
        assert any(line.startswith("started ") for line in of_kind), kind
        found = [line for line in of_kind if line.startswith("pandas ")]
        assert not found, found
