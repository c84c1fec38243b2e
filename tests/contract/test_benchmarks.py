"""Benchmarks that start services and workers of their own run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.spark.benchmark_runs import SERVED, arguments_of, check, run_of


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long) if name == "kinesis.sink" else name
        for name in SERVED
    ],
)
def test_it_runs(name: str, tmp_path: Path) -> None:
    check(run_of(name)(**arguments_of(name)), name, tmp_path)
