"""Subscribes to shards with SubscribeToShard, on HTTP/2 by awscrt or on HTTP/1.1 by botocore.

botocore writes, signs and resolves every request, and raises the errors of its answers. awscrt
sends them if the service has HTTP/2, no proxy is configured for it and awscrt is installed: the
API reference demands HTTP/2, on which many subscriptions share one connection, and whose flow
control bounds the memory of each. The handlers use botocore's events `before-send`, whose handlers
may return a response, and `before-parse`, whose handlers may replace its body.

The messages of a response, of the media type `application/vnd.amazon.eventstream`, are cut from its
chunks of bytes here: botocore's own reader appends each chunk to what it has, which copies a
message of a megabyte many times; and the size of a message must be known before the rest of it is
received, so that memory can be reserved. Each complete message is decoded by botocore. Source:
"Event stream encoding", Amazon Transcribe developer guide.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from botocore.eventstream import EventStreamBuffer, EventStreamMessage, ParserError
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from spark_ssp.common.aws.clients import trusted_certificates
from spark_ssp.common.aws.error_translation import (
    Severity,
    code_of,
    quoted,
    severity_of,
    severity_of_code,
)
from spark_ssp.common.aws.provided_credentials import renew_refused
from spark_ssp.common.errors import AccessError, SspError
from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.client.api import SubscriptionError
from spark_ssp.kinesis_source.client.boto3_client import connect, position_parameters
from spark_ssp.kinesis_source.client.messages import parse_date, parse_event
from spark_ssp.kinesis_source.model.shard import ConsumerArn, EpochMillis, Position, RecordPage
from spark_ssp.kinesis_source.options.values import ConnectionOptions

if TYPE_CHECKING:
    from botocore.client import BaseClient

_log = logging.getLogger(__name__)

SILENCE_MS: Final = 5_000
"""The longest time without an event. The service sends one at least every few seconds, also if
there are no records."""

_POSITION_NAMES: Final = {
    "ShardIteratorType": "Type",
    "StartingSequenceNumber": "SequenceNumber",
    "Timestamp": "Timestamp",
}

_MESSAGES: Final = "SparkSspMessages"

_OPERATION: Final = "SubscribeToShard"

_thread = threading.local()


PRELUDE_BYTES: Final = 12
"""Total length, length of the headers and a checksum, four bytes each."""

MAX_MESSAGE_BYTES: Final = 24 << 20
"""The longest message that botocore decodes."""


class BrokenStreamError(Exception):
    """The bytes end within a message, or are not a message."""


_FAULTS: Final = (
    BotoCoreError,
    BrokenStreamError,
    ClientError,
    HTTPError,
    OSError,
    ParserError,
    ResponseParserError,
    ValueError,
)


class Transport(Protocol):
    """Sends requests by other means than botocore's."""

    def send(self, request: Any) -> Any:
        """Send a prepared request of botocore; return its response (`AWSResponse`), or None if
        botocore has to send it."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class Boto3Subscriber:
    """`Subscriber` on a boto3 client, whose read timeout is the longest silence of a subscription.

    The client must have botocore's retries off. It sends the requests if there is no `transport`.
    """

    def __init__(self, client: BaseClient, transport: Transport | None = None) -> None:
        self._client = client
        self._transport = transport
        events = client.meta.events
        for event, handler in (("before-send", _send), ("before-parse", _keep_messages)):
            events.register(
                f"{event}.kinesis.{_OPERATION}", handler, unique_id=f"spark-ssp-{event}"
            )

    def subscribe(
        self,
        consumer: ConsumerArn,
        shard: ShardKey,
        position: Position,
        *,
        inclusive: bool = False,
    ) -> Boto3Subscription:
        """Call SubscribeToShard once."""
        _thread.transport = self._transport
        try:
            answer = self._client.subscribe_to_shard(  # type: ignore[attr-defined]
                ConsumerARN=consumer,
                ShardId=shard.shard,
                StartingPosition=_starting_position(position, inclusive=inclusive),
            )
            return Boto3Subscription(shard, answer[_MESSAGES], parse_date(answer))
        except (*_FAULTS, LookupError, SspError) as error:
            renewed = renew_refused(self._client, error)
            raise _fault(shard, error, may_pass=renewed) from None
        finally:
            _thread.transport = None

    def close(self) -> None:
        """Close the connections of the transport."""
        if self._transport is not None:
            self._transport.close()


def open_subscriber(options: ConnectionOptions, *, window: int) -> Boto3Subscriber:
    """Return a subscriber. `window`: the bytes that the service may send of each subscription
    before they are read, if there is flow control. Raises AccessError when there are no
    credentials, InvalidOptionsError without a region; calls nothing."""
    silence_ms = min(options.read_timeout_ms, SILENCE_MS)
    client = connect(replace(options, read_timeout_ms=silence_ms)).client
    return Boto3Subscriber(client, _http2_transport(client.meta.endpoint_url, options, window))


def _http2_transport(endpoint: str, options: ConnectionOptions, window: int) -> Transport | None:
    if not endpoint.startswith("https:"):
        return None
    try:
        from spark_ssp.kinesis_source.client.http2_transport import Http2Transport
    except ImportError:
        _log.info(
            "subscriptions use HTTP/1.1, with a connection for each: install awscrt for HTTP/2"
        )
        return None
    return Http2Transport(
        window=window,
        certificates=trusted_certificates(options),
        connect_timeout=min(options.connect_timeout_ms, SILENCE_MS) / 1000,
        silence=min(options.read_timeout_ms, SILENCE_MS) / 1000,
    )


def _send(request: Any, **_: object) -> Any:
    """Called by botocore: send the request by the thread's transport, if it has one."""
    transport: Transport | None = getattr(_thread, "transport", None)
    return None if transport is None else transport.send(request)


def _starting_position(position: Position, *, inclusive: bool) -> dict[str, Any]:
    """Return the parameters of GetShardIterator under the names that SubscribeToShard has."""
    parameters = position_parameters(position, inclusive=inclusive)
    return {_POSITION_NAMES[name]: value for name, value in parameters.items()}


class Boto3Subscription:
    """`Subscription` on the messages of a response."""

    def __init__(self, shard: ShardKey, messages: MessageStream, date: EpochMillis | None) -> None:
        self._shard = shard
        self._messages = messages
        self._date = date or EpochMillis(0)
        self._size = 0

    def next_size(self) -> int | None:
        """Wait for the next event; return the size of its message."""
        try:
            size = self._messages.next_size()
        except _FAULTS as error:
            raise _fault(self._shard, error) from None
        self._size = size or 0
        return size

    def next_page(self) -> RecordPage:
        """Return the event of which `next_size` returned the size."""
        try:
            return self._page(self._messages.next_message(self._size))
        except _FAULTS as error:
            raise _fault(self._shard, error) from None

    def close(self) -> None:
        """End the subscription."""
        self._messages.close()

    def _page(self, message: Message) -> RecordPage:
        headers = message.headers
        kind = headers.get(":message-type")
        if kind != "event":
            code = headers.get(":exception-type") or headers.get(":error-code") or str(kind)
            lasting = severity_of_code(code) is Severity.PERMANENT
            raise _error(self._shard, code, f"{code} in a subscription", is_lasting=lasting)
        if headers.get(":event-type") != "SubscribeToShardEvent":
            raise _error(self._shard, "UnknownEvent", "an event of another type")
        return parse_event(message.payload, self._date)


def _keep_messages(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object
) -> None:
    """Called by botocore: put the messages of a subscription into the answer."""
    if response_dict["status_code"] == 200:
        messages = MessageStream(response_dict["body"])
        response_dict["body"] = messages
        customized_response_dict[_MESSAGES] = messages


def _fault(shard: ShardKey, error: Exception, *, may_pass: bool = False) -> SubscriptionError:
    if isinstance(error, SubscriptionError):
        return error
    if isinstance(error, SspError):
        lasting = isinstance(error, AccessError)
        return _error(shard, error.kind, f"{error.found} on {_OPERATION}", is_lasting=lasting)
    if isinstance(error, ClientError | BotoCoreError):
        lasting = severity_of(error) is Severity.PERMANENT and not may_pass
        return _error(shard, code_of(error), f"{quoted(error)} on {_OPERATION}", is_lasting=lasting)
    name = type(error).__name__
    # Only the text of this module's own error cannot contain data.
    text = f"{error}" if isinstance(error, BrokenStreamError) else name
    return _error(shard, name, f"{text} in a subscription")


def _error(
    shard: ShardKey, code: str, found: str, *, is_lasting: bool = False
) -> SubscriptionError:
    error = SubscriptionError(
        f"shard {shard}",
        found=found,
        expected="a subscription of the consumer",
        next_step="none: the records are read by GetRecords",
    )
    error.code = code
    error.is_lasting = is_lasting
    return error


class RawStream(Protocol):
    """The body of a response, as urllib3 has it."""

    def stream(self) -> Iterator[bytes]:
        """Yield the bytes in the order of their arrival, as they arrive."""
        ...

    def close(self) -> None:
        """Close the connection of the response, or its stream."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message: its headers that are text, and its payload."""

    headers: Mapping[str, str]
    payload: bytes


class MessageStream:
    """The messages of a response, one after the other. Used by one thread. It is also what botocore
    reads the first message from, by `stream`."""

    def __init__(self, raw: RawStream) -> None:
        self._raw = raw
        self._chunks = raw.stream()
        self._received = bytearray()

    def next_size(self) -> int | None:
        """Wait for the beginning of a message; return the message's size, or None at the end."""
        if not self._receive(PRELUDE_BYTES):
            return None
        size = int.from_bytes(self._received[:4], "big")
        if not PRELUDE_BYTES < size <= MAX_MESSAGE_BYTES:
            raise BrokenStreamError(f"a message of {size} bytes")
        return size

    def next_message(self, size: int) -> Message:
        """Return the message of which `next_size` returned the size."""
        buffer = EventStreamBuffer()
        buffer.add_data(self._take(size))
        try:
            message: EventStreamMessage = next(buffer)
        except (ParserError, StopIteration, ValueError, KeyError) as error:
            # Without the text: it may contain a part of the message.
            raise BrokenStreamError(f"a malformed message ({type(error).__name__})") from None
        headers = cast("Mapping[str, str]", message.headers)
        return Message(headers=headers, payload=message.payload)

    def stream(self) -> Iterator[bytes]:
        """Yield the bytes of one message at a time."""
        while (size := self.next_size()) is not None:
            yield self._take(size)

    def close(self) -> None:
        """Close the response."""
        self._raw.close()

    def _take(self, size: int) -> bytes:
        if not self._receive(size):
            raise BrokenStreamError("the end of the response in place of a message")
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def _receive(self, size: int) -> bool:
        """Receive until there are `size` bytes; return False at the end of the response."""
        while len(self._received) < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                if self._received:
                    raise BrokenStreamError("the end of the response within a message")
                return False
            self._received += chunk
        return True
