"""`register` where Spark has found the formats, as in 4.0, and where it has not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from spark_ssp import register


def session(condition: str | None) -> tuple[Any, list[str]]:
    """Return a session whose registration fails with the condition, and the names it received."""
    names: list[str] = []

    def receive(source: Any) -> None:
        names.append(source.name())
        if condition is not None:
            raise AnalysisException(f"[{condition}] the data source {source.name()}")

    return SimpleNamespace(dataSource=SimpleNamespace(register=receive)), names


@pytest.mark.parametrize("condition", [None, "DATA_SOURCE_ALREADY_EXISTS"])
def test_both_formats_are_registered(
    condition: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AnalysisException, "getCondition", lambda _: condition)
    spark, names = session(condition)
    register(spark)
    assert names == ["kinesis-ssp", "kafka-ssp"]


def test_another_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AnalysisException, "getCondition", lambda _: "DATA_SOURCE_NOT_EXIST")
    spark, names = session("DATA_SOURCE_NOT_EXIST")
    with pytest.raises(AnalysisException):
        register(spark)
    assert names == ["kinesis-ssp"]
