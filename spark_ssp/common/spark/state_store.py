"""The state store provider that `transformWithState` requires, for deduplication and tables."""

from __future__ import annotations

from typing import Final

PROVIDER_SETTING: Final = "spark.sql.streaming.stateStore.providerClass"
PROVIDER: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def is_rocksdb(provider: str | None) -> bool:
    """Return whether a provider is RocksDB: Spark's class, or a vendor's of the same name."""
    return provider is not None and provider.rpartition(".")[2] == PROVIDER.rpartition(".")[2]
