"""Operations on streams and their shards, and the stream or consumer that a request names."""

from __future__ import annotations

import re
from collections.abc import Callable

from spark_ssp.testing.kinesis.state.errors import (
    in_use,
    invalid_argument,
    limit_exceeded,
    not_found,
    serialization,
    validation,
)
from spark_ssp.testing.kinesis.state.page_reads import hash_key_range
from spark_ssp.testing.kinesis.state.request import (
    Json,
    Request,
    invalid_value,
    missing,
    required,
    seal,
    time_value,
    unseal_next_token,
)
from spark_ssp.testing.kinesis.state.service_state import ServiceState
from spark_ssp.testing.kinesis.state.stream import (
    MAX_RETENTION_HOURS,
    MIN_RETENTION_HOURS,
    Change,
    Distribution,
    Shard,
    Stream,
    StreamMode,
    StreamStatus,
)
from spark_ssp.testing.kinesis.state.subscription import Consumer

_MAX_SHARDS = 10_000
_MAX_RESULTS = 1000
"""The most shards in an answer of ListShards."""
_MAX_LISTED = 100
"""The most shards or streams in an answer of DescribeStream or ListStreams."""
_MAX_TAGS = 50
_KIB = 1024


_ARN = re.compile(r"arn:aws[^:]*:kinesis:[^:]*:\d{12}:stream/(\S+)")
_CONSUMER_ARN = re.compile(
    r"(arn:aws[^:]*:kinesis:[^:]*:\d{12}:stream/([a-zA-Z0-9_.-]+))/consumer/([a-zA-Z0-9_.-]+):\d+"
)


def stream_of(state: ServiceState, request: Request) -> Stream:
    """Return the stream that a request names by StreamName, StreamARN or both."""
    name, arn = request.name("StreamName"), request.text("StreamARN")
    if arn is not None:
        match = _ARN.fullmatch(arn)
        if match is None:
            raise invalid_value("StreamARN", "must be the ARN of a stream")
        if name is not None and name != match[1]:
            raise invalid_argument(f"StreamName {name} and StreamARN {arn} differ.")
        stream = state.stream(match[1])
        if stream.arn != arn:
            raise not_found(f"Stream {arn} not found.")
        return stream
    if name is None:
        raise invalid_argument("Either StreamName or StreamARN must be given.")
    return state.stream(name)


def consumer_of(state: ServiceState, request: Request) -> tuple[Stream, Consumer]:
    """Return the consumer that a request names by ConsumerARN, by StreamARN and ConsumerName, or by
    all three, and its stream."""
    arn, stream_arn = request.text("ConsumerARN"), request.text("StreamARN")
    name = request.name("ConsumerName")
    if arn is None:
        if stream_arn is None or name is None:
            raise invalid_argument(
                "Either ConsumerARN, or StreamARN and ConsumerName must be given."
            )
        stream = stream_of(state, request)
        return stream, state.consumers(stream.name).get(name, request.now_ms)
    match = _CONSUMER_ARN.fullmatch(arn)
    if match is None:
        raise invalid_value("ConsumerARN", "must be the ARN of a consumer")
    if stream_arn not in (None, match[1]) or name not in (None, match[3]):
        raise invalid_argument(f"ConsumerARN {arn}, StreamARN and ConsumerName differ.")
    stream = state.stream(match[2])
    consumer = state.consumers(stream.name).get(match[3], request.now_ms)
    if consumer.arn != arn:
        raise not_found(f"Consumer {arn} not found.")
    return stream, consumer


def stream_in_consumer_arn(arn: str) -> str | None:
    """Return the name of the stream in the ARN of a consumer, or None for any other text."""
    match = _CONSUMER_ARN.fullmatch(arn)
    return None if match is None else match[2]


def page_size(request: Request, field: str, most: int) -> int:
    """Return the number of results that a request asks for, up to `most`, which is the default."""
    return min(request.bounded(field, 1, 10_000) or most, most)


# --- Streams --------------------------------------------------------------------------------------


def create_stream(state: ServiceState, request: Request) -> Json:
    name = request.required_name("StreamName")
    mode = _mode(request) or StreamMode.PROVISIONED
    distribution = _distribution(request)
    if distribution is not None and mode is not StreamMode.ON_DEMAND:
        raise invalid_argument("Only an on-demand stream has a record distribution strategy.")
    count = request.bounded("ShardCount", 1, _MAX_SHARDS)
    if count is None:
        if mode is StreamMode.PROVISIONED:
            raise missing("ShardCount")
        count = 4  # the default of an on-demand stream
    kib = request.bounded("MaxRecordSizeInKiB", 1024, 10 * 1024) or 1024
    tags = request.tags()
    stream = state.create_stream(
        name,
        count,
        mode=mode,
        distribution=distribution or Distribution.USER_PARTITION_KEY,
        max_record_bytes=kib * _KIB,
        delay_ms=state.delays.create_ms,
    )
    stream.tags.update(tags or {})
    return {}


def delete_stream(state: ServiceState, request: Request) -> Json:
    stream = stream_of(state, request)
    if stream.status is StreamStatus.CREATING:
        stream.require_active()
    if not request.flag("EnforceConsumerDeletion") and state.consumers(stream.name).all(
        request.now_ms
    ):
        raise in_use(f"Stream {stream.name} has consumers, and EnforceConsumerDeletion is not set.")
    state.delete_stream(stream.name, delay_ms=state.delays.delete_ms)
    return {}


def describe_stream(state: ServiceState, request: Request) -> Json:
    stream = stream_of(state, request)
    limit = page_size(request, "Limit", _MAX_LISTED)
    after = request.name("ExclusiveStartShardId") or ""
    state.rate_limiter.call("DescribeStream", request.now_ms)
    shards = [s for s in stream.shards(request.now_ms) if s.shard_id > after]
    description = _common(stream) | {
        "Shards": [shard_json(s) for s in shards[:limit]],
        "HasMoreShards": len(shards) > limit,
    }
    if stream.status is StreamStatus.CREATING:
        description |= {"Shards": [], "HasMoreShards": False}
    return {"StreamDescription": description}


def describe_stream_summary(state: ServiceState, request: Request) -> Json:
    stream = stream_of(state, request)
    state.rate_limiter.call("DescribeStreamSummary", request.now_ms)
    creating = stream.status is StreamStatus.CREATING
    summary = _common(stream) | {
        "OpenShardCount": 0 if creating else len(stream.open_shards()),
        "ConsumerCount": len(state.consumers(stream.name).all(request.now_ms)),
        "MaxRecordSizeInKiB": stream.max_record_bytes // _KIB,
    }
    if stream.mode is StreamMode.ON_DEMAND:
        summary["RecordDistributionStrategy"] = stream.distribution.value
    return {"StreamDescriptionSummary": summary}


def _common(stream: Stream) -> Json:
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "StreamStatus": stream.status.value,
        "StreamModeDetails": {"StreamMode": stream.mode},
        "RetentionPeriodHours": stream.retention_hours,
        "StreamCreationTimestamp": stream.created_ms / 1000,
        "EnhancedMonitoring": [{"ShardLevelMetrics": []}],
        "EncryptionType": "NONE",
    }


def list_streams(state: ServiceState, request: Request) -> Json:
    limit = page_size(request, "Limit", _MAX_LISTED)
    after = request.name("ExclusiveStartStreamName") or ""
    token = request.text("NextToken")
    state.rate_limiter.call("ListStreams", request.now_ms)
    if token is not None:
        (after,) = unseal_next_token("ListStreams", token, request.now_ms)
    names = [name for name in state.stream_names() if name > after]
    page = [state.stream(name) for name in names[:limit]]
    answer: Json = {
        "StreamNames": [s.name for s in page],
        "HasMoreStreams": len(names) > limit,
        "StreamSummaries": [
            {
                "StreamName": s.name,
                "StreamARN": s.arn,
                "StreamStatus": s.status.value,
                "StreamModeDetails": {"StreamMode": s.mode},
                "StreamCreationTimestamp": s.created_ms / 1000,
            }
            for s in page
        ],
    }
    if len(names) > limit:
        answer["NextToken"] = seal(
            "ListStreams", page[-1].name, request.now_ms, state.next_serial()
        )
    return answer


def increase_retention(state: ServiceState, request: Request) -> Json:
    stream, hours = _retention_request(state, request)
    if hours < stream.retention_hours:
        raise invalid_argument(
            f"Requested retention period ({hours} hours) for stream {stream.name} can not be "
            f"shorter than the existing retention period ({stream.retention_hours} hours)."
        )
    stream.set_retention_hours(hours, request.now_ms)
    return {}


def decrease_retention(state: ServiceState, request: Request) -> Json:
    stream, hours = _retention_request(state, request)
    if hours > stream.retention_hours:
        raise invalid_argument(
            f"Requested retention period ({hours} hours) for stream {stream.name} can not be "
            f"longer than the existing retention period ({stream.retention_hours} hours)."
        )
    stream.set_retention_hours(hours, request.now_ms)
    return {}


def _retention_request(state: ServiceState, request: Request) -> tuple[Stream, int]:
    stream = stream_of(state, request)
    hours = required("RetentionPeriodHours", request.integer("RetentionPeriodHours"))
    if not MIN_RETENTION_HOURS <= hours <= MAX_RETENTION_HOURS:
        raise invalid_argument(
            f"Retention period must be from {MIN_RETENTION_HOURS} to {MAX_RETENTION_HOURS} "
            f"hours, found {hours}."
        )
    stream.require_active()
    return stream, hours


def update_max_record_size(state: ServiceState, request: Request) -> Json:
    stream = stream_of(state, request)
    kib = required("MaxRecordSizeInKiB", request.bounded("MaxRecordSizeInKiB", 1024, 10 * 1024))
    stream.require_active()
    stream.max_record_bytes = kib * _KIB
    return {}


def update_mode(state: ServiceState, request: Request) -> Json:
    stream = _stream_by_arn(state, request)
    mode = required("StreamModeDetails", _mode(request))
    stream.require_active()
    stream.set_mode(mode)
    return {}


def update_distribution(state: ServiceState, request: Request) -> Json:
    stream = _stream_by_arn(state, request)
    distribution = required("RecordDistributionStrategy", _distribution(request))
    stream.require_active()
    stream.set_distribution(distribution)
    return {}


def _stream_by_arn(state: ServiceState, request: Request) -> Stream:
    """Return the stream of an operation that takes no StreamName."""
    request.required_text("StreamARN")
    return stream_of(state, request)


def _mode(request: Request) -> StreamMode | None:
    details = request.mapping("StreamModeDetails")
    text = None if details is None else details.get("StreamMode")
    if text not in (None, *map(str, StreamMode)):
        raise invalid_value("streamModeDetails.streamMode", "must be PROVISIONED or ON_DEMAND")
    return None if text is None else StreamMode(text)


def _distribution(request: Request) -> Distribution | None:
    text = request.text("RecordDistributionStrategy")
    if text not in (None, *map(str, Distribution)):
        raise invalid_value("recordDistributionStrategy", "must be AUTO or USER_PARTITION_KEY")
    return None if text is None else Distribution(text)


def add_tags(state: ServiceState, request: Request) -> Json:
    stream = stream_of(state, request)
    tags = required("Tags", request.tags())
    if len(stream.tags | tags) > _MAX_TAGS:
        raise invalid_argument(f"A stream can have at most {_MAX_TAGS} tags.")
    stream.tags.update(tags)
    return {}


def remove_tags(state: ServiceState, request: Request) -> Json:
    stream = stream_of(state, request)
    keys = required("TagKeys", request.body.get("TagKeys"))
    if not (isinstance(keys, list) and all(isinstance(key, str) for key in keys)):
        raise serialization("TagKeys: expected a list of strings.")
    for key in keys:
        stream.tags.pop(key, None)
    return {}


def list_tags(state: ServiceState, request: Request) -> Json:
    stream = stream_of(state, request)
    after = request.text("ExclusiveStartTagKey") or ""
    limit = request.bounded("Limit", 1, _MAX_TAGS) or _MAX_TAGS
    keys = sorted(key for key in stream.tags if key > after)
    return {
        "Tags": [{"Key": key, "Value": stream.tags[key]} for key in keys[:limit]],
        "HasMoreTags": len(keys) > limit,
    }


def describe_limits(state: ServiceState, request: Request) -> Json:
    state.rate_limiter.call("DescribeLimits", request.now_ms)
    streams = [state.stream(name) for name in state.stream_names()]
    return {
        "ShardLimit": _MAX_SHARDS,
        "OpenShardCount": sum(len(s.open_shards()) for s in streams if s.mode == "PROVISIONED"),
        "OnDemandStreamCount": sum(s.mode == "ON_DEMAND" for s in streams),
        "OnDemandStreamCountLimit": 50,
    }


# --- Shards ---------------------------------------------------------------------------------------


def shard_json(shard: Shard) -> Json:
    """Return a shard as in ListShards and DescribeStream; EndingSequenceNumber only if closed."""
    numbers = {"StartingSequenceNumber": str(shard.starting_number)}
    if shard.ending_number is not None:
        numbers["EndingSequenceNumber"] = str(shard.ending_number)
    answer: Json = {
        "ShardId": shard.shard_id,
        "HashKeyRange": hash_key_range(shard),
        "SequenceNumberRange": numbers,
    }
    if shard.parent is not None:
        answer["ParentShardId"] = shard.parent
    if shard.adjacent_parent is not None:
        answer["AdjacentParentShardId"] = shard.adjacent_parent
    return answer


# --- ListShards ---------------------------------------------------------------------------------


def list_shards(state: ServiceState, request: Request) -> Json:
    limit = page_size(request, "MaxResults", _MAX_RESULTS)
    token = request.text("NextToken")
    if token is not None:
        stream, after, wanted, at_ms = _continued(state, request, token)
    else:
        stream, after, wanted, at_ms = _first_page(state, request)
    state.rate_limiter.call("ListShards", request.now_ms, stream=stream.name)
    if stream.status is StreamStatus.CREATING:
        stream.require_active()
    keep = _filter(stream, wanted, at_ms, request.now_ms)
    found = [s for s in stream.shards(request.now_ms) if s.shard_id > after and keep(s)]
    answer: Json = {"Shards": [shard_json(s) for s in found[:limit]]}
    if len(found) > limit:
        last = found[limit - 1].shard_id
        at = "" if at_ms is None else at_ms
        place = (stream.name, stream.created_ms, last, wanted, at)
        answer["NextToken"] = seal("ListShards", *place, request.now_ms, state.next_serial())
    return answer


def _first_page(state: ServiceState, request: Request) -> tuple[Stream, str, str, int | None]:
    stream = stream_of(state, request)
    created = request.time_ms("StreamCreationTimestamp")
    if created is not None and created != stream.created_ms:
        raise invalid_argument(f"Stream {stream.name} was not created at that time.")
    after = request.name("ExclusiveStartShardId") or ""
    shard_filter = request.mapping("ShardFilter")
    if shard_filter is None:
        return stream, after, "FROM_TRIM_HORIZON", None
    wanted = shard_filter.get("Type")
    at_ms = time_value("ShardFilter.Timestamp", shard_filter.get("Timestamp"))
    if wanted == "AFTER_SHARD_ID":
        shard_id = shard_filter.get("ShardId")
        if not isinstance(shard_id, str):
            raise invalid_argument("ShardId must be given with the filter type AFTER_SHARD_ID.")
        return stream, max(after, shard_id), "FROM_TRIM_HORIZON", None
    if wanted not in _FILTERS:
        raise invalid_value(
            "shardFilter.type", f"must be one of AFTER_SHARD_ID, {', '.join(_FILTERS)}"
        )
    if wanted in ("AT_TIMESTAMP", "FROM_TIMESTAMP"):
        if at_ms is None:
            raise invalid_argument(f"Timestamp must be given with the filter type {wanted}.")
        if at_ms > request.now_ms:
            raise invalid_argument("The Timestamp of a ShardFilter must not be in the future.")
    return stream, after, wanted, at_ms


def _continued(
    state: ServiceState, request: Request, token: str
) -> tuple[Stream, str, str, int | None]:
    for other in _NOT_WITH_A_TOKEN:
        if request.body.get(other) is not None:
            raise invalid_argument(f"NextToken and {other} cannot be provided together.")
    name, created, after, wanted, at = unseal_next_token("ListShards", token, request.now_ms)
    stream = state.stream(name)
    if stream.created_ms != int(created):
        raise invalid_argument("NextToken belongs to another stream.")
    return stream, after, wanted, int(at) if at else None


_NOT_WITH_A_TOKEN = (
    *("StreamName", "StreamARN", "StreamCreationTimestamp"),
    *("ExclusiveStartShardId", "ShardFilter"),
)
"""Parameters that the service refuses beside a NextToken. The API reference leaves out the ARN and
the filter; readers that sent one failed from 1,001 shards on (KPL #481, Beam #33478)."""


_FILTERS = ("AT_TRIM_HORIZON", "FROM_TRIM_HORIZON", "AT_LATEST", "AT_TIMESTAMP", "FROM_TIMESTAMP")


def _filter(stream: Stream, wanted: str, at_ms: int | None, now_ms: int) -> Callable[[Shard], bool]:
    """Return the predicate of a ShardFilter (API reference) on shards that have not expired."""
    horizon = stream.horizon_ms(now_ms)
    since = max(horizon, at_ms) if at_ms is not None else horizon

    def from_time(shard: Shard) -> bool:
        return shard.closed_ms is None or shard.closed_ms >= since

    def at_time(shard: Shard) -> bool:
        return shard.created_ms <= since and from_time(shard)

    match wanted:
        case "AT_LATEST":
            return lambda shard: shard.is_open
        case "AT_TIMESTAMP" | "AT_TRIM_HORIZON":
            return at_time
        case _:
            return from_time


# --- Resharding ---------------------------------------------------------------------------------


def split_shard(state: ServiceState, request: Request) -> Json:
    stream = _reshardable(state, request, "SplitShard")
    shard_id = request.required_name("ShardToSplit")
    cut = required("NewStartingHashKey", request.decimal("NewStartingHashKey", 39))
    stream.check_split(shard_id, cut, request.now_ms)
    _reshard(state, request, stream, lambda now_ms: stream.split(shard_id, cut, now_ms))
    return {}


def merge_shards(state: ServiceState, request: Request) -> Json:
    stream = _reshardable(state, request, "MergeShards")
    shard_id = request.required_name("ShardToMerge")
    adjacent = request.required_name("AdjacentShardToMerge")
    stream.check_merge(shard_id, adjacent, request.now_ms)
    _reshard(state, request, stream, lambda now_ms: stream.merge(shard_id, adjacent, now_ms))
    return {}


def update_shard_count(state: ServiceState, request: Request) -> Json:
    stream = _reshardable(state, request, None)
    target = required("TargetShardCount", request.bounded("TargetShardCount", 1, _MAX_SHARDS))
    if request.text("ScalingType") != "UNIFORM_SCALING":
        raise invalid_value("scalingType", "must be UNIFORM_SCALING")
    current = len(stream.open_shards())
    factor = state.rate_limiter.limits.scaling_factor
    if factor is not None and not current <= target * factor <= current * factor * factor:
        raise limit_exceeded(
            f"UpdateShardCount cannot scale stream {stream.name} from {current} to {target} "
            f"shards in one step."
        )
    _reshard(state, request, stream, lambda now_ms: stream.scale(target, now_ms))
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "CurrentShardCount": current,
        "TargetShardCount": target,
    }


def _reshardable(state: ServiceState, request: Request, limited: str | None) -> Stream:
    stream = stream_of(state, request)
    if limited is not None:
        state.rate_limiter.call(limited, request.now_ms)
    if stream.mode is StreamMode.ON_DEMAND:
        raise validation(
            f"Request is invalid. Stream {stream.name} is in the capacity mode ON_DEMAND, in which "
            f"the service changes the shards itself."
        )
    stream.require_active()
    return stream


def _reshard(
    state: ServiceState, request: Request, stream: Stream, apply: Callable[[int], object]
) -> None:
    if state.delays.reshard_ms == 0:
        apply(request.now_ms)
    else:
        due_ms = request.now_ms + state.delays.reshard_ms
        stream.schedule(Change(due_ms=due_ms, status=StreamStatus.UPDATING, apply=apply))
