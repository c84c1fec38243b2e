"""The state store of Spark's that `transformWithState` needs, which drops repeats and holds tables.
One rule for all who ask for it."""

from __future__ import annotations

from typing import Final

PROVIDER_SETTING: Final = "spark.sql.streaming.stateStore.providerClass"
PROVIDER: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def is_rocksdb(provider: str | None) -> bool:
    """Whether a provider is RocksDB: Spark's own class, or a vendor's of that name in a package of
    its own."""
    return provider is not None and provider.rpartition(".")[2] == PROVIDER.rpartition(".")[2]
