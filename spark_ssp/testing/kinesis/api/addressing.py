"""Resolves the stream or the consumer of a request."""

from __future__ import annotations

import re

from spark_ssp.testing.kinesis.core.errors import invalid_argument, not_found
from spark_ssp.testing.kinesis.core.request import Request, invalid_value
from spark_ssp.testing.kinesis.state.consumers import Consumer
from spark_ssp.testing.kinesis.state.service_state import ServiceState
from spark_ssp.testing.kinesis.state.stream import Stream

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
