"""The options of the Kinesis sink, parsed: frozen values that executors receive by pickle.

This module stays cheap to import, since every executor imports it: it does not load the parser.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinesis_source.model.shard import StreamRef
from kinesis_source.options.values import ConnectionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All options of a sink. `stream` None: each row names its stream in the column `stream`.
    `is_ordered`: the order of a partition key is kept within a task."""

    stream: StreamRef | None = None
    is_ordered: bool = False
    delivery_timeout_ms: int = 120_000
    max_requests_in_flight: int = 8
    connection: ConnectionOptions
