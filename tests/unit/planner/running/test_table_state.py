"""The state of a joined table for one key at a time, kept in a variable here."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Row

from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.planner.running.table_join import LatestRow


class OneValue:
    """The state of one key: where a `LatestRow` looks for its handle, and what it gets there."""

    def __init__(self) -> None:
        self.value: tuple[Any, ...] | None = None

    def getValueState(self, name: str, schema: str) -> OneValue:
        return self

    def exists(self) -> bool:
        return self.value is not None

    def get(self) -> tuple[Any, ...] | None:
        return self.value

    def update(self, value: tuple[Any, ...]) -> None:
        self.value = value

    def clear(self) -> None:
        self.value = None


def _change(value: str | None, number: int = 0) -> Row:
    return Row(changes=True, number=number, value=value)


def _line(value: str) -> Row:
    return Row(changes=False, number=0, value=value)


def _batch(state: OneValue, *rows: Row, table: str = "names", outer: bool = True) -> list[Row]:
    processor = LatestRow(table=table, outer=outer)
    processor.init(state)  # type: ignore[arg-type]
    return list(processor.handleInputRows(("k",), iter(rows), None))


def test_a_row_sees_the_latest_change_of_its_batch_and_of_those_before() -> None:
    state = OneValue()
    assert _batch(state, _line("l1"), outer=False) == []
    assert _batch(state, _line("l1")) == [Row(line="l1", held=None)]
    rows = (_line("l2"), _change("b", 2), _change("a", 1), _line("l3"))
    assert _batch(state, *rows) == [Row(line="l2", held="b"), Row(line="l3", held="b")]
    assert _batch(state, _line("l4")) == [Row(line="l4", held="b")]
    assert _batch(state, _change(None), _line("l5")) == [Row(line="l5", held=None)]


def test_the_state_of_another_table_is_refused() -> None:
    state = OneValue()
    _batch(state, _change("secret"), table="airports")
    with pytest.raises(IncompatibleStateError) as caught:
        _batch(state, _line("l1"), table="names")
    assert "state of table names: found rows of table airports" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert state.value is not None
