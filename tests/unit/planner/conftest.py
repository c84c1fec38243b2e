"""A pipeline for each test, named p."""

from __future__ import annotations

import pytest

from spark_ssp.planner import Pipeline


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline("p")
