"""Cumulative counts of a stream reader on the driver, as its status shows them under `counters`.

    {"retries": 3, "throttles": 2, "reshards": 1, "dataLossWarnings": 0, "agentRestarts": 0}

They start at 0 with each run of a query. Of a source with several streams each stream's entry shows
the same counts: those of the reader.
"""

from __future__ import annotations

from dataclasses import dataclass

COUNTERS = "counters"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderCounters:
    """The counts; None for what a source cannot count."""

    retries: int
    """Calls of the driver that failed and were made again, throttled ones included."""
    throttles: int | None = None
    """Of these, the calls that a service refused because of their rate."""
    reshards: int
    """Splits and merges whose shards the reader went on to read; of Kafka, expansions of topics."""
    data_loss_warnings: int
    """Losses found by the driver that `failOnDataLoss=false` tolerated."""
    agent_restarts: int | None = None
    """Processes of the lease agent that were replaced; None without leases."""

    def document(self) -> dict[str, int]:
        """Return the counts as JSON."""
        counts = {
            "retries": self.retries,
            "throttles": self.throttles,
            "reshards": self.reshards,
            "dataLossWarnings": self.data_loss_warnings,
            "agentRestarts": self.agent_restarts,
        }
        return {name: count for name, count in counts.items() if count is not None}
