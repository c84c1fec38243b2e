"""The events of SubscribeToShard in their wire form, `application/vnd.amazon.eventstream`.

A message has its total length and the length of its headers, their CRC-32, the headers, the payload
and the CRC-32 of all that. botocore can decode such messages, not encode them.
"""

from __future__ import annotations

import struct
from binascii import crc32
from collections.abc import Mapping
from typing import Final

import orjson

from spark_ssp.testing.kinesis.http.wire import JSON, records_json
from spark_ssp.testing.kinesis.state.subscription import ErrorEvent, Event

CONTENT_TYPE: Final = b"application/vnd.amazon.eventstream"
_STRING: Final = 7
_PRELUDE_BYTES: Final = 12
_CRC_BYTES: Final = 4


def encode_message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Return a message with headers of the type string."""
    encoded = b"".join(_header(name, value) for name, value in headers.items())
    total = _PRELUDE_BYTES + len(encoded) + len(payload) + _CRC_BYTES
    lengths = struct.pack(">II", total, len(encoded))
    message = b"".join((lengths, struct.pack(">I", crc32(lengths)), encoded, payload))
    return message + struct.pack(">I", crc32(message))


def _header(name: str, value: str) -> bytes:
    raw_name, raw_value = name.encode(), value.encode()
    return b"".join(
        (
            struct.pack(">B", len(raw_name)),
            raw_name,
            struct.pack(">BH", _STRING, len(raw_value)),
            raw_value,
        )
    )


def initial_response() -> bytes:
    """Return the first message of a response, which AWS SDKs expect before the events."""
    return encode_message(_headers("event", ":event-type", "initial-response"), b"{}")


def encode_event(event: Event) -> bytes:
    """Return the message of an event; an error is a message of the type exception."""
    if isinstance(event, ErrorEvent):
        payload = orjson.dumps({"message": event.message})
        return encode_message(_headers("exception", ":exception-type", event.code), payload)
    rest: dict[str, object] = {"MillisBehindLatest": event.millis_behind_latest}
    if event.continuation is not None:
        rest["ContinuationSequenceNumber"] = event.continuation
    if event.child_shards is not None:
        rest["ChildShards"] = event.child_shards
    payload = records_json(event.records, rest)
    return encode_message(_headers("event", ":event-type", "SubscribeToShardEvent"), payload)


def _headers(message_type: str, kind: str, value: str) -> dict[str, str]:
    return {":message-type": message_type, kind: value, ":content-type": JSON.decode()}
