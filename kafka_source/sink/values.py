"""The options of the Kafka sink, parsed: frozen values that executors receive by pickle.

This module stays cheap to import, since every executor imports it: it does not load the parser.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafka_source.properties.translation import ClientProperties
from task_grouping.identifiers import StreamName


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Everything a sink was told. `topic` None: each row's own, from its column `topic`."""

    topic: StreamName | None = None
    include_repeat_headers: bool = False
    batch_write: tuple[str, int] | None = None
    """Who writes which batch, for a batch write that is one of a streaming query."""
    client: ClientProperties
