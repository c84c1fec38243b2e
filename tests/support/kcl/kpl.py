"""Making aggregated records as the Kinesis Producer Library does."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from spark_ssp.kinesis_source.aggregation import kpl_proto
from spark_ssp.kinesis_source.aggregation.deaggregation import MAGIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A user record as it was put."""

    partition_key: str
    data: bytes
    explicit_hash_key: str | None = None


def aggregate(records: Sequence[Put]) -> bytes:
    """Return the data of a Kinesis record with `records`; its table contains each key once."""
    message = kpl_proto.new()
    partition_keys: dict[str, int] = {}
    explicit_hash_keys: dict[str, int] = {}
    for record in records:
        explicit = record.explicit_hash_key
        message.records.add(
            partition_key_index=partition_keys.setdefault(
                record.partition_key, len(partition_keys)
            ),
            data=record.data,
            explicit_hash_key_index=None
            if explicit is None
            else explicit_hash_keys.setdefault(explicit, len(explicit_hash_keys)),
        )
    for partition_key in partition_keys:
        message.partition_key_table.append(partition_key)
    for explicit_hash_key in explicit_hash_keys:
        message.explicit_hash_key_table.append(explicit_hash_key)
    return seal(message.SerializeToString())


def seal(message: bytes) -> bytes:
    """`message` between the magic number and its checksum."""
    return MAGIC + message + hashlib.md5(message, usedforsecurity=False).digest()
