"""Exactly-once delivery: the decision of a task, and the digest of its rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.kafka_source.sink.columns import Rows
from spark_ssp.kafka_source.sink.markers import (
    Action,
    CompletedBatch,
    Marker,
    Refusal,
    RowDigest,
    Write,
    decide,
    read_completed,
    read_marker,
    refused,
    rows_differ,
    write_completed,
    write_marker,
)

# --- The decision ---------------------------------------------------------------------------------


def _marker(batch: int | None) -> Marker | None:
    return None if batch is None else Marker(batch=batch, rows=3, digest="0" * 32)


def _completed(batch: int | None, tasks: int) -> CompletedBatch | None:
    return None if batch is None else CompletedBatch(batch=batch, tasks=tasks)


@pytest.mark.parametrize(
    ("batch", "marker", "completed", "decision"),
    [
        (0, None, None, Action.WRITE),
        (0, 0, None, Action.COMPARE),
        (0, 0, 0, Action.COMPARE),
        (7, 6, 6, Action.WRITE),
        (7, 7, 6, Action.COMPARE),
        (7, 7, 7, Action.COMPARE),
        # The record of a driver that was replaced may be late.
        (7, 6, 3, Action.WRITE),
        (7, None, None, Refusal.NOT_BEGUN),
        (7, 6, None, Refusal.NOT_BEGUN),
        (7, 8, 6, Refusal.NEWER),
        (7, 6, 8, Refusal.NEWER),
        (7, None, 7, Refusal.LOST),
        (7, None, 6, Refusal.LOST),
        (7, 5, 6, Refusal.LOST),
        (7, None, 5, Refusal.GAP),
        (7, 5, 5, Refusal.GAP),
    ],
)
def test_decisions(
    batch: int, marker: int | None, completed: int | None, decision: Action | Refusal
) -> None:
    write = Write(sink="s", task=1, batch=batch)
    known = _marker(marker), _completed(completed, tasks=2)
    assert decide(write, *known) is decision
    if isinstance(decision, Refusal):
        error = refused(write, decision, *known)
        assert "batch 7, task 1" in error.subject


def test_a_new_task_needs_no_marker_and_a_function_may_leave_batches_out() -> None:
    write = Write(sink="s", task=2, batch=7)
    assert decide(write, None, _completed(6, tasks=2)) is Action.WRITE
    assert decide(write, None, _completed(4, tasks=2)) is Refusal.GAP
    assert decide(replace(write, has_gaps=True), None, _completed(4, tasks=2)) is Action.WRITE
    old = replace(write, task=1, has_gaps=True)
    assert decide(old, _marker(4), _completed(4, tasks=2)) is Action.WRITE
    assert decide(old, _marker(3), _completed(4, tasks=2)) is Refusal.LOST


@pytest.mark.parametrize(
    ("of_first", "decision"),
    [
        (None, Refusal.GAP),
        (5, Refusal.GAP),
        (6, Action.WRITE),
        (7, Action.WRITE),
        (8, Refusal.NEWER),
    ],
)
def test_a_record_that_went_back_refuses_no_task_that_is_new(
    of_first: int | None, decision: Action | Refusal
) -> None:
    write = Write(sink="s", task=2, batch=7)
    for marker, tasks in ((None, 1), (5, 3)):
        known = _marker(marker), _completed(5, tasks=tasks), _marker(of_first)
        assert decide(write, *known) is decision
        if isinstance(decision, Refusal):
            assert f"batch {max(5, of_first or 0)}" in refused(write, decision, *known).found
    assert decide(write, None, _completed(5, tasks=3), _marker(6)) is Refusal.LOST


def test_the_first_batch_that_is_written_so_may_be_a_later_one() -> None:
    write = Write(sink="s", task=0, batch=7, first=7)
    assert decide(write, None, None) is Action.WRITE
    assert decide(replace(write, batch=8), None, None) is Refusal.NOT_BEGUN


# --- The digest and the stored form ---------------------------------------------------------------

_rows = st.tuples(
    st.sampled_from(["a", "b"]),
    st.none() | st.binary(max_size=2),
    st.none() | st.binary(max_size=2),
    st.none() | st.integers(0, 2),
    st.lists(st.tuples(st.sampled_from(["h", "i"]), st.none() | st.binary(max_size=1)), max_size=2),
)


def _digest(*batches: list[tuple[Any, ...]]) -> RowDigest:
    digest = RowDigest()
    for batch in batches:
        columns = [list(column) for column in zip(*batch, strict=True)] or [[]] * 5
        topics, keys, values, partitions, headers = columns
        digest.add(
            Rows(
                count=len(batch),
                # As the writer has them: one topic, and no column of which nothing is used.
                topics=topics[0] if len(set(topics)) == 1 else topics,
                keys=keys if any(key is not None for key in keys) else None,
                values=values,
                partitions=partitions if any(p is not None for p in partitions) else None,
                headers=headers if any(headers) else None,
            )
        )
    return digest


@given(
    one=st.lists(_rows, max_size=4),
    other=st.lists(_rows, max_size=4),
    cut=st.integers(0, 4),
)
def test_digests_are_equal_if_the_rows_are_in_any_order_and_batches(
    one: list[tuple[Any, ...]], other: list[tuple[Any, ...]], cut: int
) -> None:
    stored = read_marker("group", 5, write_marker(_digest(one)))
    assert stored.batch == 5
    assert _digest(one[cut:], one[:cut]).equals(stored)
    assert _digest(*([row] for row in reversed(one))).equals(stored)
    found = _digest(other)
    assert found.equals(stored) == (sorted(map(repr, one)) == sorted(map(repr, other)))
    if not found.equals(stored):
        error = rows_differ(Write(sink="s", task=1, batch=5), stored, found)
        assert f"{len(one)} rows" in error.expected


@pytest.mark.parametrize("key", [None, b"k"])
def test_rows_that_exchange_a_field_have_another_digest(key: bytes | None) -> None:
    """As by a join whose order is not fixed."""

    def row(order: int, courier: int) -> tuple[Any, ...]:
        value = f'{{"order":{order},"courier":{courier},"status":"assigned"}}'
        return "orders", key, value.encode(), None, ()

    one = _digest([row(1517859, 7416), row(4862323, 5882)])
    other = _digest([row(1517859, 5882), row(4862323, 7416)])
    assert one.hex != other.hex


def test_foreign_offsets_are_refused() -> None:
    assert read_completed("group", 4, write_completed(9)) == CompletedBatch(batch=4, tasks=9)
    for text in (None, "", "{}", "[1]", '{"v": 2, "tasks": 9}', '{"v": 1, "tasks": "9"}'):
        with pytest.raises(IncompatibleStateError):
            read_completed("group", 4, text)
    with pytest.raises(IncompatibleStateError):
        read_marker("group", 4, write_completed(9))
