"""Operations on streams as a whole: creating, describing, listing, retention, tags."""

from __future__ import annotations

from spark_ssp.testing.kinesis.api.addressing import stream_of
from spark_ssp.testing.kinesis.api.shards import shard_json
from spark_ssp.testing.kinesis.core import tokens
from spark_ssp.testing.kinesis.core.errors import expired_next_token, in_use, invalid_argument
from spark_ssp.testing.kinesis.core.request import Json, Request, invalid_value, missing
from spark_ssp.testing.kinesis.state.service_state import ServiceState
from spark_ssp.testing.kinesis.state.stream import (
    MAX_RETENTION_HOURS,
    MIN_RETENTION_HOURS,
    Distribution,
    Stream,
    StreamMode,
    StreamStatus,
)

_MAX_SHARDS = 10_000
_MAX_TAGS = 50
_KIB = 1024


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
    stream = state.create_stream(
        name,
        count,
        mode=mode,
        distribution=distribution or Distribution.USER_PARTITION_KEY,
        max_record_bytes=kib * _KIB,
        delay_ms=state.delays.create_ms,
    )
    stream.tags.update(request.body.get("Tags") or {})
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
    limit = request.bounded("Limit", 1, 10_000) or 100
    after = request.name("ExclusiveStartShardId") or ""
    state.rate_limiter.account_call("DescribeStream", request.now_ms)
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
    state.rate_limiter.account_call("DescribeStreamSummary", request.now_ms)
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
    limit = request.bounded("Limit", 1, 10_000) or 100
    after = request.name("ExclusiveStartStreamName") or ""
    token = request.text("NextToken")
    if token is not None:
        fields = tokens.unseal("ListStreams", token)
        if fields is None:
            raise invalid_argument("Invalid NextToken.")
        if request.now_ms - int(fields[1]) > tokens.NEXT_TOKEN_LIFE_MS:
            raise expired_next_token("NextToken has expired.")
        after = fields[0]
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
        answer["NextToken"] = tokens.seal(
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
    hours = request.integer("RetentionPeriodHours")
    if hours is None:
        raise missing("RetentionPeriodHours")
    if not MIN_RETENTION_HOURS <= hours <= MAX_RETENTION_HOURS:
        raise invalid_argument(
            f"Retention period must be from {MIN_RETENTION_HOURS} to {MAX_RETENTION_HOURS} "
            f"hours, found {hours}."
        )
    stream.require_active()
    return stream, hours


def update_max_record_size(state: ServiceState, request: Request) -> Json:
    stream = stream_of(state, request)
    kib = request.bounded("MaxRecordSizeInKiB", 1024, 10 * 1024)
    if kib is None:
        raise missing("MaxRecordSizeInKiB")
    stream.require_active()
    stream.max_record_bytes = kib * _KIB
    return {}


def update_mode(state: ServiceState, request: Request) -> Json:
    stream = _stream_by_arn(state, request)
    mode = _mode(request)
    if mode is None:
        raise missing("StreamModeDetails")
    stream.require_active()
    stream.set_mode(mode)
    return {}


def update_distribution(state: ServiceState, request: Request) -> Json:
    stream = _stream_by_arn(state, request)
    distribution = _distribution(request)
    if distribution is None:
        raise missing("RecordDistributionStrategy")
    stream.require_active()
    stream.set_distribution(distribution)
    return {}


def _stream_by_arn(state: ServiceState, request: Request) -> Stream:
    """Return the stream of an operation that takes no StreamName."""
    request.required_text("StreamARN")
    return stream_of(state, request)


def _mode(request: Request) -> StreamMode | None:
    details = request.body.get("StreamModeDetails") or {}
    text = details.get("StreamMode")
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
    tags = request.body.get("Tags")
    if not isinstance(tags, dict):
        raise missing("Tags")
    if len(stream.tags | tags) > _MAX_TAGS:
        raise invalid_argument(f"A stream can have at most {_MAX_TAGS} tags.")
    stream.tags.update({str(key): str(value) for key, value in tags.items()})
    return {}


def remove_tags(state: ServiceState, request: Request) -> Json:
    stream = stream_of(state, request)
    for key in request.body.get("TagKeys") or []:
        stream.tags.pop(str(key), None)
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
    streams = [state.stream(name) for name in state.stream_names()]
    return {
        "ShardLimit": _MAX_SHARDS,
        "OpenShardCount": sum(len(s.open_shards()) for s in streams if s.mode == "PROVISIONED"),
        "OnDemandStreamCount": sum(s.mode == "ON_DEMAND" for s in streams),
        "OnDemandStreamCountLimit": 50,
    }
