"""Reads topics of Kafka: their partitions and offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kafka_source.client.admin_client import connect
from kafka_source.options import table
from kafka_source.options.parse import parse_options
from kafka_source.options.values import KafkaOptions
from ssp_common.options.spec import left_out
from task_grouping.identifiers import StreamName

_SELECTIONS: Final = (table.SUBSCRIBE, table.SUBSCRIBE_PATTERN, table.ASSIGN)


def topic_options(topics: Iterable[str], options: Mapping[str, str]) -> KafkaOptions:
    """Parse options of a query, with these topics. Raises InvalidOptionsError."""
    return parse_options({**left_out(options, *_SELECTIONS), "subscribe": ",".join(topics)})


def count_partitions(
    topics: Iterable[StreamName], options: Mapping[str, str]
) -> dict[StreamName, int]:
    """Return the number of partitions of each topic that exists."""
    parsed = topic_options(topics, options)
    found = connect(parsed).describe(parsed.selection)
    return {name: topic.partition_count for name, topic in found.items()}
