"""Operations on the consumers of enhanced fan-out: registering, describing, listing."""

from __future__ import annotations

from spark_ssp.testing.kinesis.api.addressing import consumer_of, stream_of
from spark_ssp.testing.kinesis.core import tokens
from spark_ssp.testing.kinesis.core.errors import (
    expired_next_token,
    invalid_argument,
    serialization,
)
from spark_ssp.testing.kinesis.core.request import Json, Request
from spark_ssp.testing.kinesis.state.consumers import Consumer
from spark_ssp.testing.kinesis.state.service_state import ServiceState
from spark_ssp.testing.kinesis.state.stream import StreamStatus

_MAX_RESULTS = 100
_MAX_TAGS = 50


def register(state: ServiceState, request: Request) -> Json:
    request.required_text("StreamARN")
    name = request.required_name("ConsumerName")
    tags = _tags(request)
    stream = stream_of(state, request)
    limits = state.rate_limiter.limits
    state.rate_limiter.account_call("RegisterStreamConsumer", request.now_ms)
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
    tags = request.body.get("Tags") or {}
    if not isinstance(tags, dict):
        raise serialization("Tags: expected an object.")
    if len(tags) > _MAX_TAGS:
        raise invalid_argument(f"A consumer can have at most {_MAX_TAGS} tags.")
    return {str(key): str(value) for key, value in tags.items()}


def describe(state: ServiceState, request: Request) -> Json:
    stream, consumer = consumer_of(state, request)
    state.rate_limiter.consumer_call("DescribeStreamConsumer", stream.name, request.now_ms)
    description = _consumer_json(consumer, request.now_ms) | {"StreamARN": stream.arn}
    return {"ConsumerDescription": description}


def deregister(state: ServiceState, request: Request) -> Json:
    stream, consumer = consumer_of(state, request)
    state.rate_limiter.consumer_call("DeregisterStreamConsumer", stream.name, request.now_ms)
    state.consumers(stream.name).deregister(
        consumer.name, request.now_ms, delay_ms=state.delays.deregister_ms
    )
    return {}


def list_consumers(state: ServiceState, request: Request) -> Json:
    request.required_text("StreamARN")
    limit = min(request.bounded("MaxResults", 1, 10_000) or _MAX_RESULTS, _MAX_RESULTS)
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
    state.rate_limiter.consumer_call("ListStreamConsumers", stream.name, request.now_ms)
    if stream.status is StreamStatus.CREATING:
        stream.require_active()
    found = [c for c in state.consumers(stream.name).all(request.now_ms) if c.name > after]
    answer: Json = {"Consumers": [_consumer_json(c, request.now_ms) for c in found[:limit]]}
    if len(found) > limit:
        place = (stream.name, stream.created_ms, found[limit - 1].name)
        serial = state.next_serial()
        answer["NextToken"] = tokens.seal("ListStreamConsumers", *place, request.now_ms, serial)
    return answer


def _continued(token: str, stream: str, created_ms: int, now_ms: int) -> str:
    """Return the name of the consumer after which the page of `token` begins."""
    fields = tokens.unseal("ListStreamConsumers", token)
    if fields is None:
        raise invalid_argument("Invalid NextToken.")
    name, created, after, issued, _serial = fields
    if (name, int(created)) != (stream, created_ms):
        raise invalid_argument("NextToken belongs to another stream.")
    if now_ms - int(issued) > tokens.NEXT_TOKEN_LIFE_MS:
        raise expired_next_token("NextToken has expired: it is valid for 300 seconds.")
    return after


def _consumer_json(consumer: Consumer, now_ms: int) -> Json:
    return {
        "ConsumerName": consumer.name,
        "ConsumerARN": consumer.arn,
        "ConsumerStatus": consumer.status(now_ms).value,
        "ConsumerCreationTimestamp": consumer.created_ms / 1000,
    }
