"""Offsets of a checkpoint that PySpark cannot parse."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.kafka_source.source import KafkaStreamReader

OPTIONS = {"kafka.bootstrap.servers": "broker:9092", "subscribe": "orders"}


def _plan(text: str, module: str) -> None:
    """Plan as PySpark's worker does: it parses the offset, and stops the reader in the end."""
    scope: dict[str, Any] = {"__name__": module, "json": json}
    exec("def parse(text): return json.loads(text)", scope)
    parse: Callable[[str], Any] = scope["parse"]
    reader = KafkaStreamReader(OPTIONS)
    try:
        parse(text)
    finally:
        reader.stop()


@pytest.mark.parametrize("text", ["", '{"v": 2, "topics": {"ord', "[" * 200_000])
@pytest.mark.parametrize("module", ["__main__", "pyspark.sql.streaming.any_worker"])
def test_the_error_names_the_folder_and_the_command(text: str, module: str) -> None:
    with pytest.raises(IncompatibleStateError) as caught:
        _plan(text, module)
    assert "folder offsets" in caught.value.found
    assert "spark-ssp checkpoint" in caught.value.next_step


def test_errors_of_other_origin_are_not_replaced() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        _plan("", "spark_ssp.kafka_source.source")
    _plan("{}", "__main__")
