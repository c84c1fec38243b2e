"""Reads streams and topics: their shards and partitions, and what is in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kinesis_source.client.boto3_client import connect
from kinesis_source.model.shard import Shard, StreamDescription, StreamRef
from ssp_common.options.endpoints import ConnectionOptions
from task_grouping.identifiers import StreamName


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedStream:
    """A stream and its shards, those that are closed and not yet expired included."""

    description: StreamDescription
    shards: tuple[Shard, ...]


def list_streams(
    names: Iterable[StreamName], connection: ConnectionOptions
) -> dict[StreamName, ListedStream]:
    """Describe and list streams. Needs kinesis:DescribeStreamSummary and kinesis:ListShards."""
    service = connect(connection)
    found = {}
    for name in names:
        stream = StreamRef(name=name)
        found[name] = ListedStream(
            description=service.describe(stream), shards=service.list_shards(stream)
        )
    return found
