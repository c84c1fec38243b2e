"""The lag in the query's progress, as JSON.

    {"topics": {"orders": {"offsetsBehindLatest": {"0": 3, "1": 0},
                           "maxOffsetsBehindLatest": 3, "sumOffsetsBehindLatest": 3}},
     "minOffsetsBehindLatest": 0, "maxOffsetsBehindLatest": 3, "avgOffsetsBehindLatest": 1.5,
     "sumOffsetsBehindLatest": 3}

Offsets, not records: compacted records and transaction markers count as well. The names and the
meaning of minimum, maximum and average are those of the metrics of Spark's source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_ssp.grouping.identifiers import StreamName


def lag_metrics(lag: Mapping[StreamName, Mapping[int, int]]) -> dict[str, Any] | None:
    """Return the lag as JSON, or None before the first batch."""
    behind = [offsets for partitions in lag.values() for offsets in partitions.values()]
    if not behind:
        return None
    return {
        "topics": {
            topic: {
                "offsetsBehindLatest": {str(p): lag[topic][p] for p in sorted(lag[topic])},
                "maxOffsetsBehindLatest": max(lag[topic].values()),
                "sumOffsetsBehindLatest": sum(lag[topic].values()),
            }
            for topic in sorted(lag)
        },
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
        "sumOffsetsBehindLatest": sum(behind),
    }
