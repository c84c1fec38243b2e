"""Every operation that the embedded service has, by its name in the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from embedded_kinesis.api import records, shards, streams
from embedded_kinesis.core.request import Json, Request
from embedded_kinesis.state.page_reads import RecordsPage

if TYPE_CHECKING:
    from embedded_kinesis.state.service_state import KinesisState

Operation = Callable[["KinesisState", Request], Json | RecordsPage]

OPERATIONS: Final[dict[str, Operation]] = {
    "AddTagsToStream": streams.add_tags,
    "CreateStream": streams.create_stream,
    "DecreaseStreamRetentionPeriod": streams.decrease_retention,
    "DeleteStream": streams.delete_stream,
    "DescribeLimits": streams.describe_limits,
    "DescribeStream": streams.describe_stream,
    "DescribeStreamSummary": streams.describe_stream_summary,
    "GetRecords": records.get_records,
    "GetShardIterator": records.get_shard_iterator,
    "IncreaseStreamRetentionPeriod": streams.increase_retention,
    "ListShards": shards.list_shards,
    "ListStreams": streams.list_streams,
    "ListTagsForStream": streams.list_tags,
    "MergeShards": shards.merge_shards,
    "PutRecord": records.put_record,
    "PutRecords": records.put_records,
    "RemoveTagsFromStream": streams.remove_tags,
    "SplitShard": shards.split_shard,
    "UpdateMaxRecordSize": streams.update_max_record_size,
    "UpdateShardCount": shards.update_shard_count,
    "UpdateStreamMode": streams.update_mode,
    "UpdateStreamRecordDistributionStrategy": streams.update_distribution,
}
