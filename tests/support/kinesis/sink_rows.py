"""Rows of the Kinesis sink, and the entries of its requests, decoded as a service does."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_ssp.kinesis_source.model.shard import PutEntries
from spark_ssp.kinesis_source.sink.columns import Rows


class Entry(NamedTuple):
    """An entry of a request."""

    data: bytes
    partition_key: str | None = None
    explicit_hash_key: str | None = None


def rows_of(entries: Sequence[Entry]) -> Rows:
    """Return rows that have the data and keys of entries."""
    hash_keys = [one.explicit_hash_key for one in entries]
    sizes = [len(one.data) + len((one.partition_key or "").encode()) for one in entries]
    return Rows(
        pa.array([one.data for one in entries], pa.binary()),
        pa.array([one.partition_key for one in entries], pa.string()),
        pa.array(hash_keys, pa.string()) if any(hash_keys) else None,
        np.array(sizes, np.int64),
    )


def entries_of(entries: PutEntries) -> list[Entry]:
    """Decode entries."""
    decoded = json.loads(b"[%b]" % b"".join(entries.text).removesuffix(b","))
    assert len(decoded) == entries.count
    return [_entry(**one) for one in decoded]


def _entry(Data: str, PartitionKey: str | None = None, ExplicitHashKey: str | None = None) -> Entry:
    return Entry(base64.b64decode(Data, validate=True), PartitionKey, ExplicitHashKey)
