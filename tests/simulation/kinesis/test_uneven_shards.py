"""Catching up with shards of different rates under a limit costs no more if batches are aligned."""

from __future__ import annotations

import pytest

from tests.support.simulation.uneven import BacklogRead, BacklogReader, spread_rates

SHARDS, LOWEST, HIGHEST = 16, 0.5, 75.0
BACKLOG_S, RECORD_BYTES = 120, 4000


@pytest.mark.parametrize(
    "limit",
    [{"maxRecordsPerTrigger": "5000"}, {"maxBytesPerTrigger": str(16 << 20)}],
    ids=["5,000 records", "16 MiB"],
)
def test_alignment_costs_neither_throughput_nor_calls(limit: dict[str, str]) -> None:
    unaligned, aligned = _read(limit, "false"), _read(limit, "true")
    assert aligned.per_second >= 0.9 * unaligned.per_second
    assert aligned.calls <= 1.1 * unaligned.calls


def _read(limit: dict[str, str], aligned: str) -> BacklogRead:
    reader = BacklogReader(
        options={**limit, "alignBatches": aligned},
        rates=spread_rates(SHARDS, LOWEST, HIGHEST),
        backlog_s=BACKLOG_S,
        record_bytes=RECORD_BYTES,
    )
    return reader.run()
