"""Columns that a query may request of a source, and what they must contain."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
from hypothesis import strategies as st

from spark_ssp.common.columns import Column


def some_of(columns: Sequence[Column], bytes_: Collection[str]) -> st.SearchStrategy[list[Column]]:
    """At least one of the columns, in any order; those of bytes as such or as text."""
    found = [
        Column(one.name, is_text)
        for one in columns
        for is_text in ((False, True) if one.name in bytes_ else (False,))
    ]
    return st.lists(st.sampled_from(found), min_size=1, unique_by=lambda one: one.name)


def selected(batch: pa.RecordBatch, columns: Sequence[Column]) -> pa.RecordBatch:
    """Return these columns of a batch that has all."""
    arrays = [
        batch[one.name].cast(pa.string()) if one.is_text else batch[one.name] for one in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[one.name for one in columns])
