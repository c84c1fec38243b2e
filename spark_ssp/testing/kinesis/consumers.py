"""Operations on the consumers of enhanced fan-out, SubscribeToShard among them: opening a
subscription, and the events that it sends."""

from __future__ import annotations

from dataclasses import replace

from spark_ssp.testing.kinesis.records import ITERATOR_TYPES
from spark_ssp.testing.kinesis.state import page_reads
from spark_ssp.testing.kinesis.state.errors import (
    KinesisError,
    dry_run,
    in_use,
    invalid_argument,
)
from spark_ssp.testing.kinesis.state.faults import SubscriptionFault
from spark_ssp.testing.kinesis.state.page_reads import Cursor
from spark_ssp.testing.kinesis.state.request import (
    Json,
    Request,
    decimal_value,
    invalid_value,
    missing,
    required,
    seal,
    time_value,
    unseal_next_token,
)
from spark_ssp.testing.kinesis.state.service_state import ServiceState
from spark_ssp.testing.kinesis.state.stream import Shard, Stream, StreamStatus
from spark_ssp.testing.kinesis.state.subscription import (
    Consumer,
    ConsumerStatus,
    ErrorEvent,
    Step,
    Subscription,
    advance,
    open_subscription,
)
from spark_ssp.testing.kinesis.streams import consumer_of, page_size, stream_of

_MAX_RESULTS = 100
_MAX_TAGS = 50


def register(state: ServiceState, request: Request) -> Json:
    request.required_text("StreamARN")
    name = request.required_name("ConsumerName")
    tags = _tags(request)
    stream = stream_of(state, request)
    limits = state.rate_limiter.limits
    state.rate_limiter.call("RegisterStreamConsumer", request.now_ms)
    if stream.status in (StreamStatus.CREATING, StreamStatus.DELETING):
        stream.require_active()
    consumers = state.consumers(stream.name)
    consumers.check_room(
        request.now_ms,
        limit=limits.consumers_per_stream,
        creating_limit=limits.creating_consumers_per_stream,
    )
    consumer = consumers.register(
        name, request.now_ms, delay_ms=state.delays.register_ms, tags=tags
    )
    return {"Consumer": _consumer_json(consumer, request.now_ms)}


def _tags(request: Request) -> dict[str, str]:
    tags = request.tags() or {}
    if len(tags) > _MAX_TAGS:
        raise invalid_argument(f"A consumer can have at most {_MAX_TAGS} tags.")
    return tags


def describe(state: ServiceState, request: Request) -> Json:
    stream, consumer = consumer_of(state, request)
    state.rate_limiter.call("DescribeStreamConsumer", request.now_ms, stream=stream.name)
    description = _consumer_json(consumer, request.now_ms) | {"StreamARN": stream.arn}
    return {"ConsumerDescription": description}


def deregister(state: ServiceState, request: Request) -> Json:
    stream, consumer = consumer_of(state, request)
    state.rate_limiter.call("DeregisterStreamConsumer", request.now_ms, stream=stream.name)
    state.consumers(stream.name).deregister(
        consumer.name, request.now_ms, delay_ms=state.delays.deregister_ms
    )
    return {}


def list_consumers(state: ServiceState, request: Request) -> Json:
    request.required_text("StreamARN")
    limit = page_size(request, "MaxResults", _MAX_RESULTS)
    stream = stream_of(state, request)
    created = request.time_ms("StreamCreationTimestamp")
    token = request.text("NextToken")
    after = ""
    if token is not None:
        if created is not None:
            raise invalid_argument(
                "NextToken and StreamCreationTimestamp cannot be provided together."
            )
        after = _continued(token, stream.name, stream.created_ms, request.now_ms)
    elif created not in (None, stream.created_ms):
        raise invalid_argument(f"Stream {stream.name} was not created at that time.")
    state.rate_limiter.call("ListStreamConsumers", request.now_ms, stream=stream.name)
    if stream.status is StreamStatus.CREATING:
        stream.require_active()
    found = [c for c in state.consumers(stream.name).all(request.now_ms) if c.name > after]
    answer: Json = {"Consumers": [_consumer_json(c, request.now_ms) for c in found[:limit]]}
    if len(found) > limit:
        place = (stream.name, stream.created_ms, found[limit - 1].name)
        serial = state.next_serial()
        answer["NextToken"] = seal("ListStreamConsumers", *place, request.now_ms, serial)
    return answer


def _continued(token: str, stream: str, created_ms: int, now_ms: int) -> str:
    """Return the name of the consumer after which the page of `token` begins."""
    name, created, after = unseal_next_token("ListStreamConsumers", token, now_ms)
    if (name, int(created)) != (stream, created_ms):
        raise invalid_argument("NextToken belongs to another stream.")
    return after


def _consumer_json(consumer: Consumer, now_ms: int) -> Json:
    return {
        "ConsumerName": consumer.name,
        "ConsumerARN": consumer.arn,
        "ConsumerStatus": consumer.status(now_ms).value,
        "ConsumerCreationTimestamp": consumer.created_ms / 1000,
    }


# --- Subscriptions --------------------------------------------------------------------------------


def subscribe_to_shard(state: ServiceState, request: Request) -> Subscription:
    """Open a subscription, whose events `next_step` returns."""
    request.required_text("ConsumerARN")
    shard_id = request.required_name("ShardId")
    stream, consumer = consumer_of(state, request)
    shard = stream.shard(shard_id, request.now_ms)
    state.rate_limiter.subscribe(consumer.arn, shard_id, request.now_ms)
    status = consumer.status(request.now_ms)
    if status is not ConsumerStatus.ACTIVE:
        raise in_use(f"Consumer {consumer.arn} is not ACTIVE, instead it is in state {status}.")
    cursor, after_number = _starting_position(stream, shard, request)
    subscription = open_subscription(
        shard,
        replace(cursor, empty_pages=state.answers.empty_pages),
        consumer.newest.get(shard_id),
        consumer_arn=consumer.arn,
        serial=state.next_serial(),
        now_ms=request.now_ms,
        after_number=after_number,
        faults=tuple(f for f in request.effects if isinstance(f, SubscriptionFault)),
    )
    if request.flag("DryRun"):
        raise dry_run()
    consumer.newest[shard_id] = subscription
    return subscription


def _starting_position(stream: Stream, shard: Shard, request: Request) -> tuple[Cursor, int | None]:
    """Return the StartingPosition as a cursor, and its number if it is AFTER_SEQUENCE_NUMBER."""
    position = required("startingPosition", request.mapping("StartingPosition"))
    kind = position.get("Type")
    if kind is None:
        raise missing("startingPosition.type")
    if kind not in ITERATOR_TYPES:
        raise invalid_value("startingPosition.type", f"must be one of {', '.join(ITERATOR_TYPES)}")
    number = decimal_value("startingPosition.sequenceNumber", position.get("SequenceNumber"), 129)
    at_ms = time_value("startingPosition.timestamp", position.get("Timestamp"))
    if number is not None and "SEQUENCE" not in kind:
        raise invalid_argument(f"SequenceNumber does not go with the position type {kind}.")
    if at_ms is not None and kind != "AT_TIMESTAMP":
        raise invalid_argument(f"Timestamp does not go with the position type {kind}.")
    cursor = page_reads.open_cursor(
        stream, shard, kind, request.now_ms, sequence_number=number, at_ms=at_ms
    )
    return cursor, number if kind == "AFTER_SEQUENCE_NUMBER" else None


def next_step(state: ServiceState, subscription: Subscription, now_ms: int) -> Step:
    """Return the next step of a subscription, and note it as the state of its consumer."""
    try:
        stream = state.stream(subscription.stream)
    except KinesisError as error:
        event = ErrorEvent(code=error.code, message=error.message)
        return Step(subscription=replace(subscription, ended=True), event=event)
    consumer = _consumer(state, subscription, now_ms)
    active = consumer is not None and consumer.status(now_ms) is ConsumerStatus.ACTIVE
    step = advance(
        subscription,
        consumer.newest.get(subscription.shard_id) if consumer is not None and active else None,
        stream,
        now_ms=now_ms,
        bytes_per_second=state.rate_limiter.limits.pushed_bytes_per_consumer_and_shard,
        answers=state.answers,
    )
    _note(consumer, step.subscription)
    return step


def close(state: ServiceState, subscription: Subscription, now_ms: int) -> None:
    """Note that the client has closed its connection."""
    try:
        consumer = _consumer(state, subscription, now_ms)
    except KinesisError:  # the stream was deleted
        return
    _note(consumer, replace(subscription, ended=True))


def _consumer(state: ServiceState, subscription: Subscription, now_ms: int) -> Consumer | None:
    """Return the consumer of a subscription, or None if it is deleted."""
    for consumer in state.consumers(subscription.stream).all(now_ms):
        if consumer.arn == subscription.consumer_arn:
            return consumer
    return None


def _note(consumer: Consumer | None, subscription: Subscription) -> None:
    """Keep the state of a subscription, unless another one has taken over."""
    if consumer is not None:
        newest = consumer.newest[subscription.shard_id]
        if newest.serial == subscription.serial:
            consumer.newest[subscription.shard_id] = subscription
