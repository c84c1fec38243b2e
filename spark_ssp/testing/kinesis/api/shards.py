"""Operations on shards: listing, splitting, merging, scaling."""

from __future__ import annotations

from collections.abc import Callable

from spark_ssp.testing.kinesis.api.addressing import stream_of
from spark_ssp.testing.kinesis.core import tokens
from spark_ssp.testing.kinesis.core.errors import (
    expired_next_token,
    invalid_argument,
    limit_exceeded,
    validation,
)
from spark_ssp.testing.kinesis.core.request import Json, Request, invalid_value, missing, time_value
from spark_ssp.testing.kinesis.state.page_reads import hash_key_range
from spark_ssp.testing.kinesis.state.service_state import ServiceState
from spark_ssp.testing.kinesis.state.shard import Shard
from spark_ssp.testing.kinesis.state.stream import Change, Stream, StreamMode, StreamStatus

_MAX_RESULTS = 1000
_MAX_SHARDS = 10_000


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
    limit = min(request.bounded("MaxResults", 1, 10_000) or _MAX_RESULTS, _MAX_RESULTS)
    token = request.text("NextToken")
    if token is not None:
        stream, after, wanted, at_ms = _continued(state, request, token)
    else:
        stream, after, wanted, at_ms = _first_page(state, request)
    state.rate_limiter.list_shards(stream.name, request.now_ms)
    if stream.status is StreamStatus.CREATING:
        stream.require_active()
    keep = _filter(stream, wanted, at_ms, request.now_ms)
    found = [s for s in stream.shards(request.now_ms) if s.shard_id > after and keep(s)]
    answer: Json = {"Shards": [shard_json(s) for s in found[:limit]]}
    if len(found) > limit:
        last = found[limit - 1].shard_id
        at = "" if at_ms is None else at_ms
        place = (stream.name, stream.created_ms, last, wanted, at)
        answer["NextToken"] = tokens.seal("ListShards", *place, request.now_ms, state.next_serial())
    return answer


def _first_page(state: ServiceState, request: Request) -> tuple[Stream, str, str, int | None]:
    stream = stream_of(state, request)
    created = request.time_ms("StreamCreationTimestamp")
    if created is not None and created != stream.created_ms:
        raise invalid_argument(f"Stream {stream.name} was not created at that time.")
    after = request.name("ExclusiveStartShardId") or ""
    shard_filter = request.body.get("ShardFilter")
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
    for other in (
        "StreamName",
        "StreamCreationTimestamp",
        "ExclusiveStartShardId",
        "ShardFilter",
    ):
        if request.body.get(other) is not None:
            raise invalid_argument(f"NextToken and {other} cannot be provided together.")
    fields = tokens.unseal("ListShards", token)
    if fields is None:
        raise invalid_argument("Invalid NextToken.")
    name, created, after, wanted, at, issued, _serial = fields
    if request.now_ms - int(issued) > tokens.NEXT_TOKEN_LIFE_MS:
        raise expired_next_token("NextToken has expired: it is valid for 300 seconds.")
    stream = state.stream(name)
    if stream.created_ms != int(created) or request.text("StreamARN") not in (None, stream.arn):
        raise invalid_argument("NextToken belongs to another stream.")
    return stream, after, wanted, int(at) if at else None


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
    cut = request.decimal("NewStartingHashKey", 39)
    if cut is None:
        raise missing("NewStartingHashKey")
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
    target = request.bounded("TargetShardCount", 1, _MAX_SHARDS)
    if target is None:
        raise missing("TargetShardCount")
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
        state.rate_limiter.account_call(limited, request.now_ms)
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
    def carry_out(now_ms: int) -> None:
        apply(now_ms)

    if state.delays.reshard_ms == 0:
        carry_out(request.now_ms)
    else:
        stream.schedule(
            Change(
                due_ms=request.now_ms + state.delays.reshard_ms,
                status=StreamStatus.UPDATING,
                apply=carry_out,
            )
        )
