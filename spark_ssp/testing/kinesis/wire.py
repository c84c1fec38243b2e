"""The service's wire form, without a socket: JSON 1.1 requests in, status, headers and body out.

boto3 sends JSON to Kinesis. Some other SDKs (Java's) send CBOR by default: they are refused with a
message that names the setting.

The events of SubscribeToShard are `application/vnd.amazon.eventstream`: a message has its total
length and the length of its headers, their CRC-32, the headers, the payload and the CRC-32 of all
that. botocore can decode such messages, not encode them.
"""

from __future__ import annotations

import base64
import struct
from binascii import crc32
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, Final

import orjson

from spark_ssp.testing.kinesis.dispatch import KinesisState
from spark_ssp.testing.kinesis.state.errors import KinesisError, serialization, unknown_operation
from spark_ssp.testing.kinesis.state.page_reads import RecordsPage
from spark_ssp.testing.kinesis.state.request import Json
from spark_ssp.testing.kinesis.state.stream import Record
from spark_ssp.testing.kinesis.state.subscription import ErrorEvent, Event, Subscription

_TARGET_PREFIX = "Kinesis_20131202."
JSON = b"application/x-amz-json-1.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An HTTP answer; header names are in lower case."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


def respond(
    state: KinesisState, headers: Mapping[bytes, bytes], body: bytes
) -> Reply | Subscription:
    """Answer one POST; a `Subscription` if its events are to be sent. Raises `NoAnswer` if a fault
    drops the connection."""
    extra: list[tuple[bytes, bytes]] = []
    status = 200
    try:
        operation, request = _parse(headers, body)
        answer = state.call(operation, request)
        if isinstance(answer, Subscription):
            return answer
        content = encode(answer)
    except KinesisError as error:
        status = error.status
        extra = [(b"x-amzn-errortype", error.code.encode())]
        content = orjson.dumps({"__type": error.code, "message": error.message})
    length = (b"content-length", str(len(content)).encode())
    return Reply(
        status=status, headers=[*common_headers(state, JSON), length, *extra], body=content
    )


def common_headers(state: KinesisState, content_type: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers of every answer of an operation."""
    number = state.next_serial()
    return [
        (b"content-type", content_type),
        (b"date", date_header(state)),
        (b"x-amzn-requestid", f"00000000-0000-0000-0000-{number:012d}".encode()),
    ]


def date_header(state: KinesisState) -> bytes:
    """Return the clock in whole seconds, rounded down: never ahead of it."""
    return formatdate(state.clock.now_ms() // 1000, usegmt=True).encode()


def _parse(headers: Mapping[bytes, bytes], body: bytes) -> tuple[str, dict[str, Any]]:
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    if "cbor" in content_type:
        raise serialization(
            "The embedded Kinesis speaks JSON, not CBOR. Switch CBOR off in the client: "
            "AWS_CBOR_DISABLE=true in its environment, or -Daws.cborEnabled=false for Java."
        )
    target = headers.get(b"x-amz-target", b"").decode("latin-1")
    if not target.startswith(_TARGET_PREFIX):
        raise unknown_operation(
            f"X-Amz-Target {target!r} is not an operation of Kinesis: expected {_TARGET_PREFIX}*."
        )
    try:
        request = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError as error:
        raise serialization("The body is not JSON.") from error
    if not isinstance(request, dict):
        raise serialization("The body is not a JSON object.")
    return target[len(_TARGET_PREFIX) :], request


def encode(answer: Json | RecordsPage) -> bytes:
    """Encode an answer of `KinesisState.call` as JSON."""
    if not isinstance(answer, RecordsPage):
        return orjson.dumps(answer)
    rest: dict[str, Any] = {
        "NextShardIterator": answer.next_iterator,
        "MillisBehindLatest": answer.millis_behind_latest,
    }
    if answer.child_shards is not None:
        rest["ChildShards"] = answer.child_shards
    return records_json(answer.records, rest)


def records_json(records: Sequence[Record], rest: Mapping[str, Any]) -> bytes:
    """Encode records and other fields (at least one) as a JSON object."""
    encoded = b",".join([record.fragment or _fragment(record) for record in records])
    return b'{"Records":[' + encoded + b"]," + orjson.dumps(rest)[1:]


def _fragment(record: Record) -> bytes:
    """Encode a record, cached in it since most records are read more than once."""
    seconds, millis = divmod(record.arrival_ms, 1000)
    key = record.partition_key
    record.fragment = (
        b'{"SequenceNumber":"%b","ApproximateArrivalTimestamp":%d.%03d,"Data":"%b",%b"EncryptionType":"NONE"}'
        % (
            record.sequence_number.encode(),
            seconds,
            millis,
            base64.b64encode(record.data),
            b"" if key is None else b'"PartitionKey":%b,' % orjson.dumps(key),
        )
    )
    return record.fragment


# --- Events of SubscribeToShard -------------------------------------------------------------------


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
