"""The options of the Kafka sink, parsed: frozen values that executors receive by pickle.

This module stays cheap to import, since every executor does; the parser is loaded on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

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


def parse_sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """The options as Spark passes them, parsed. Pure but for a warning in the log.

    Names match whatever their case. Raises InvalidOptionsError, which lists every problem.
    """
    from kafka_source.sink.parse import parse

    return parse(raw)


def refuse_batch_write() -> NoReturn:
    """For a streaming write with `batch_write`. Raises InvalidOptionsError."""
    from kafka_source.sink.parse import batch_write_in_a_stream

    raise batch_write_in_a_stream()
