"""Calls of the Kinesis API: every operation of the embedded service by its name.
`KinesisState.call` is the entry point of clients (the HTTP server, an in-process adapter): it
counts the call, applies faults and limits, and answers or raises as the service would."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from spark_ssp.testing.kinesis import consumers, records, streams
from spark_ssp.testing.kinesis.state.errors import (
    KinesisError,
    NoAnswer,
    access_denied,
    expired_iterator,
    internal_failure,
    limit_exceeded,
    throughput_exceeded,
    unknown_operation,
)
from spark_ssp.testing.kinesis.state.faults import (
    AccessDenied,
    Call,
    DropConnection,
    ExpiredIterator,
    Fault,
    InternalFailure,
    LostReply,
    Refusal,
    Throttle,
    Timeout,
    TrimRecords,
)
from spark_ssp.testing.kinesis.state.page_reads import RecordsPage, parse_cursor
from spark_ssp.testing.kinesis.state.request import Effect, Json, Request, unseal
from spark_ssp.testing.kinesis.state.service_state import ServiceState
from spark_ssp.testing.kinesis.state.subscription import Step, Subscription
from spark_ssp.testing.kinesis.streams import stream_in_consumer_arn

Answer = Json | RecordsPage | Subscription
Operation = Callable[[ServiceState, Request], Answer]

OPERATIONS: Final[dict[str, Operation]] = {
    "AddTagsToStream": streams.add_tags,
    "CreateStream": streams.create_stream,
    "DecreaseStreamRetentionPeriod": streams.decrease_retention,
    "DeleteStream": streams.delete_stream,
    "DeregisterStreamConsumer": consumers.deregister,
    "DescribeLimits": streams.describe_limits,
    "DescribeStream": streams.describe_stream,
    "DescribeStreamConsumer": consumers.describe,
    "DescribeStreamSummary": streams.describe_stream_summary,
    "GetRecords": records.get_records,
    "GetShardIterator": records.get_shard_iterator,
    "IncreaseStreamRetentionPeriod": streams.increase_retention,
    "ListShards": streams.list_shards,
    "ListStreamConsumers": consumers.list_consumers,
    "ListStreams": streams.list_streams,
    "ListTagsForStream": streams.list_tags,
    "MergeShards": streams.merge_shards,
    "PutRecord": records.put_record,
    "PutRecords": records.put_records,
    "RegisterStreamConsumer": consumers.register,
    "RemoveTagsFromStream": streams.remove_tags,
    "SplitShard": streams.split_shard,
    "SubscribeToShard": consumers.subscribe_to_shard,
    "UpdateMaxRecordSize": streams.update_max_record_size,
    "UpdateShardCount": streams.update_shard_count,
    "UpdateStreamMode": streams.update_mode,
    "UpdateStreamRecordDistributionStrategy": streams.update_distribution,
}

_LIMITED_BY_SHARD = frozenset({"GetRecords", "GetShardIterator", "PutRecord", "PutRecords"})


class KinesisState(ServiceState):
    """The state of the embedded service, with the operations of its API."""

    _operations = OPERATIONS

    def call(self, operation: str, body: Mapping[str, Any]) -> Answer:
        """Carry out one request of the Kinesis API; `body` by the API's field names.

        Raises `KinesisError` for an error answer and `NoAnswer` where a fault drops the
        connection. The answer of GetRecords is a `RecordsPage`, that of SubscribeToShard a
        `Subscription` for `next_step`, any other the answer's JSON.
        """
        handler = OPERATIONS.get(operation)
        with self.lock:
            now_ms = self.clock.now_ms()
            call = _log_entry(operation, body, now_ms)
            self.calls.add(call)
            try:
                if handler is None:
                    raise unknown_operation(
                        f"The embedded Kinesis does not have the operation {operation}. "
                        f"It has: {', '.join(sorted(OPERATIONS))}."
                    )
                faults = self.faults.take(call)
                effects, lost = self._apply_faults(faults, call)
                answer = handler(
                    self,
                    Request(operation=operation, body=dict(body), now_ms=now_ms, effects=effects),
                )
            except KinesisError as error:
                self.calls.refused[error.code] += 1
                raise
            if lost is not None:
                raise NoAnswer(delay_ms=lost.delay_ms, applied=True)
            return answer

    def next_step(self, subscription: Subscription) -> Step:
        """Return the next step of a subscription that has not ended: its next event, if one is due
        now. Pass the step's subscription to the next call."""
        with self.lock:
            return consumers.next_step(self, subscription, self.clock.now_ms())

    def close_subscription(self, subscription: Subscription) -> None:
        """End a subscription whose client has closed the connection."""
        with self.lock:
            consumers.close(self, subscription, self.clock.now_ms())

    def _apply_faults(
        self, faults: list[Fault], call: Call
    ) -> tuple[tuple[Effect, ...], LostReply | None]:
        """Apply the faults that come before the request; raise for the first that prevents it."""
        effects: list[Effect] = []
        lost: LostReply | None = None
        prevented: KinesisError | NoAnswer | None = None
        for fault in faults:
            if isinstance(fault, TrimRecords):
                assert call.stream is not None
                assert call.shard is not None
                self.trim(
                    call.stream,
                    call.shard,
                    before_sequence_number=fault.before_sequence_number,
                    before_ms=fault.before_ms,
                )
            elif isinstance(fault, Effect):
                effects.append(fault)
            elif isinstance(fault, LostReply):
                lost = lost or fault
            else:
                prevented = prevented or _error_of_fault(fault, call)
        if prevented is not None:
            raise prevented
        return tuple(effects), lost


def _error_of_fault(fault: Fault, call: Call) -> KinesisError | NoAnswer:
    match fault:
        case Refusal(code=code, message=message, status=status):
            return KinesisError(code, message, status=status)
        case Throttle() if call.operation in _LIMITED_BY_SHARD:
            return throughput_exceeded(
                f"Rate exceeded for shard {call.shard} in stream {call.stream}. (injected)"
            )
        case Throttle():
            return limit_exceeded(f"Rate exceeded for {call.operation}. (injected)")
        case InternalFailure(status=503):
            return KinesisError("ServiceUnavailable", "Injected fault.", status=503)
        case InternalFailure(status=status):
            return internal_failure("Injected fault.", status=status)
        case AccessDenied():
            return access_denied(
                f"User is not authorized to perform: kinesis:{call.operation} (injected)"
            )
        case ExpiredIterator():
            return expired_iterator("Iterator expired. (injected)")
        case Timeout(delay_ms=delay_ms):
            return NoAnswer(delay_ms=delay_ms, applied=False)
        case DropConnection():
            return NoAnswer(delay_ms=0, applied=False)
        case _:
            raise AssertionError(f"{fault} does not prevent an answer")


def _log_entry(operation: str, body: Mapping[str, Any], now_ms: int) -> Call:
    """Return the log entry of a request, with its stream and shard if it names them."""
    stream, shard = body.get("StreamName"), body.get("ShardId") or body.get("ShardToSplit")
    shard = shard or body.get("ShardToMerge")
    arn, token, iterator = body.get("StreamARN"), body.get("NextToken"), body.get("ShardIterator")
    if isinstance(iterator, str):
        try:
            cursor = parse_cursor(iterator)
        except KinesisError:  # answered by GetRecords itself
            pass
        else:
            stream, shard = cursor.stream, cursor.shard
    if stream is None and isinstance(arn, str):
        stream = arn.rpartition("/")[2]
    consumer = body.get("ConsumerARN")
    if stream is None and isinstance(consumer, str):
        stream = stream_in_consumer_arn(consumer)
    if stream is None and isinstance(token, str):
        fields = unseal("ListShards", token)
        stream = fields[0] if fields else None
    return Call(
        operation=operation,
        stream=stream if isinstance(stream, str) else None,
        shard=shard if isinstance(shard, str) else None,
        at_ms=now_ms,
        consumer=consumer if isinstance(consumer, str) else None,
    )
