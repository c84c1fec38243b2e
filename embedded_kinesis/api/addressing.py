"""Resolves the stream of a request."""

from __future__ import annotations

import re

from embedded_kinesis.core.errors import invalid_argument, not_found
from embedded_kinesis.core.request import Request, invalid_value
from embedded_kinesis.state.service_state import ServiceState
from embedded_kinesis.state.stream import Stream

_ARN = re.compile(r"arn:aws[^:]*:kinesis:[^:]*:\d{12}:stream/(\S+)")


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
