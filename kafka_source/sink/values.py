"""The options of the Kafka sink, parsed: frozen values that executors receive by pickle.

This module stays cheap to import, since every executor imports it: it does not load the parser.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.properties.translation import ClientProperties


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All options of a sink. `topic` None: each row has its topic in the column `topic`."""

    topic: StreamName | None = None
    include_repeat_headers: bool = False
    batch_write: tuple[str, int] | None = None
    """The id of the query and the number of the batch, for a batch write in `foreachBatch`."""
    client: ClientProperties
