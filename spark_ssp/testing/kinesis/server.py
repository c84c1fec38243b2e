"""The HTTP servers: of Kinesis, a thread with one event loop, and moto's DynamoDB (lease tables and
the like). They listen on 127.0.0.1 unless another address is given.

They check no credentials, so any program that can send them a request can read and write. A browser
on this machine can: requests of a page have an `Origin`, and a name that an attacker resolves to
the service's address (DNS rebinding) appears in `Host`. AWS clients send no `Origin`.

The wire form is JSON 1.1. boto3 sends JSON to Kinesis. Some other SDKs (Java's) send CBOR by
default: they are refused with a message that names the setting. The events of SubscribeToShard are
`application/vnd.amazon.eventstream`: a message has its total length and the length of its headers,
their CRC-32, the headers, the payload and the CRC-32 of all that. botocore can decode such
messages, not encode them.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import socket
import ssl
import struct
import threading
from binascii import crc32
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from spark_ssp.testing.kinesis.dispatch import KinesisState
from spark_ssp.testing.kinesis.state.errors import (
    KinesisError,
    NoAnswer,
    serialization,
    unknown_operation,
)
from spark_ssp.testing.kinesis.state.page_reads import RecordsPage
from spark_ssp.testing.kinesis.state.request import Json
from spark_ssp.testing.kinesis.state.stream import Record
from spark_ssp.testing.kinesis.state.subscription import ErrorEvent, Event, Subscription

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope
    from werkzeug.serving import BaseWSGIServer

_log = logging.getLogger(__name__)
_STOP_TIMEOUT_S = 30
_POLL_S = 0.02
"""The time between two looks for the next event of an idle subscription."""
TRANSPORT = "spark_ssp.testing.kinesis.transport"
"""The ASGI extension that contains the connection."""


MAX_BODY_BYTES = 16 * 1024 * 1024
"""More than any request needs: PutRecords takes 10 MiB, which is 14 MB as base64, and DynamoDB's
largest request is 16 MB."""


_NAMES = ("127.0.0.1", "localhost", "[::1]")


_PORT = re.compile(r":\d{1,5}$", re.ASCII)


def refusal(*, host: str | None, origin: str | None, address: str) -> str | None:
    """Return why a request with these headers is refused, or None if it is accepted. `address` is
    the one that the service listens on."""
    if origin is not None:
        return "requests of web pages (with an Origin header) are refused"
    names = dict.fromkeys((address.lower(), *_NAMES))
    if host is None or _PORT.sub("", host).lower() not in names:
        return f"the Host header must be one of {', '.join(names)}"
    return None


LOOPBACK = "127.0.0.1"
_LAST_PORT: Final = 65_535


def listen(port: int, host: str) -> socket.socket:
    """Return a socket that listens on `port` of `host`, or on any free one for 0. OSError if it is
    taken or no port, or if `host` is no address of this machine, as an empty one, which would be
    all."""
    if not host.strip():
        raise OSError("an empty host; expected an address of this machine, such as 127.0.0.1")
    if not 0 <= port <= _LAST_PORT:
        raise OSError(f"port {port}; expected one up to {_LAST_PORT}, or 0 for any free one")
    # The protocol is set explicitly because asyncio sets TCP_NODELAY only on sockets that have one;
    # without it every small answer waits 40 ms for an acknowledgement.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
    except OSError:
        listening.close()
        raise
    return listening


# --- Kinesis --------------------------------------------------------------------------------------


class Http1Protocol(HttpToolsProtocol):
    """Hands the application its connection, so that a fault can drop it."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {TRANSPORT: {"transport": self.transport}}


class _Application:
    """The ASGI application."""

    def __init__(self, state: KinesisState, address: str) -> None:
        self._state = state
        self._address = address
        self._stopping: asyncio.Event | None = None
        self._pushing: set[asyncio.Transport] = set()

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        if scope["type"] != "http":
            raise ValueError(f"unexpected ASGI scope {scope['type']}")
        headers = dict(scope["headers"])
        reason = refusal(
            host=_text(headers.get(b"host")),
            origin=_text(headers.get(b"origin")),
            address=self._address,
        )
        if reason is not None:
            await _send(send, _refused(403, reason))
            return
        try:
            body = await _body(receive)
        except _TooLargeError:
            await _send(send, _refused(413, f"at most {MAX_BODY_BYTES} bytes are taken"))
            return
        if body is None:
            return
        if scope["method"] != "POST":
            await _send(send, Reply(status=200, headers=[(b"content-length", b"0")], body=b""))
            return
        try:
            reply = respond(self._state, headers, body)
        except NoAnswer as lost:
            await self._pause(lost.delay_ms)
            _transport(scope).close()
            await _disconnected(receive)
        else:
            if isinstance(reply, Subscription):
                await self._push(reply, scope, receive, send)
            else:
                await _send(send, reply)

    async def _push(
        self,
        subscription: Subscription,
        scope: HTTPScope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
    ) -> None:
        """Send a subscription's events until it ends, the client disconnects or the server is
        stopped."""
        transport = _transport(scope)
        self._pushing.add(transport)
        disconnected = asyncio.ensure_future(_disconnected(receive))
        try:
            await _begin(send, common_headers(self._state, CONTENT_TYPE))
            await _send_part(send, initial_response())
            while not (subscription.ended or disconnected.done()):
                step = self._state.next_step(subscription)
                subscription = step.subscription
                if step.event is not None:
                    message = encode_event(step.event)
                    if step.cut:
                        await _send_part(send, message[: len(message) // 2])
                        transport.close()
                        await disconnected
                        return
                    await _send_part(send, message)
                elif not subscription.ended:
                    await asyncio.wait((disconnected,), timeout=_POLL_S)
            await _send_part(send, b"", more=False)
        finally:
            disconnected.cancel()
            self._pushing.discard(transport)
            self._state.close_subscription(subscription)

    async def _pause(self, delay_ms: int) -> None:
        """Wait for `delay_ms`, or until the server is stopped."""
        try:
            await asyncio.wait_for(self._stop_event().wait(), delay_ms / 1000)
        except TimeoutError:
            return

    def _stop_event(self) -> asyncio.Event:
        if self._stopping is None:
            self._stopping = asyncio.Event()
        return self._stopping

    def wake_all(self) -> None:
        """End all pauses, and the connections of all subscriptions. Called in the event loop."""
        self._stop_event().set()
        for transport in self._pushing:
            transport.abort()


class _TooLargeError(Exception):
    """The body of a request exceeds the limit."""


def _transport(scope: HTTPScope) -> asyncio.Transport:
    """Return the connection of a request, from its protocol."""
    transport = (scope["extensions"] or {})[TRANSPORT]["transport"]
    assert isinstance(transport, asyncio.Transport)
    return transport


async def _disconnected(receive: ASGIReceiveCallable) -> None:
    """Return once the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _text(header: bytes | None) -> str | None:
    return None if header is None else header.decode("latin-1")


def _refused(status: int, reason: str) -> Reply:
    """Return the answer that closes a connection without reading the rest of its request."""
    body = reason.encode()
    length = str(len(body)).encode()
    return Reply(
        status=status,
        headers=[
            (b"content-type", b"text/plain"),
            (b"content-length", length),
            (b"connection", b"close"),
        ],
        body=body,
    )


async def _body(receive: ASGIReceiveCallable) -> bytes | None:
    """Return the request's body, or None if the client has disconnected."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message["body"])
        size += len(message["body"])
        if size > MAX_BODY_BYTES:
            raise _TooLargeError
        if not message["more_body"]:
            return b"".join(parts)


async def _send(send: ASGISendCallable, reply: Reply) -> None:
    await _begin(send, reply.headers, reply.status)
    await _send_part(send, reply.body, more=False)


async def _begin(
    send: ASGISendCallable, headers: list[tuple[bytes, bytes]], status: int = 200
) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": headers,
            "trailers": False,
        }
    )


async def _send_part(send: ASGISendCallable, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


class HttpServer:
    """Serves `state` from `start` to `stop`, with TLS if there is a context for it."""

    def __init__(
        self,
        state: KinesisState,
        *,
        port: int,
        host: str,
        protocol: type[asyncio.Protocol] = Http1Protocol,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._socket = listen(port, host)
        self._host = host
        self.port: int = self._socket.getsockname()[1]
        self._application = _Application(state, host)
        self._loop: asyncio.AbstractEventLoop | None = None
        config = uvicorn.Config(
            self._application,
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            date_header=False,
            server_header=False,
            timeout_keep_alive=300,
        )
        config.load()
        config.ssl = tls
        self._scheme = "http" if tls is None else "https"
        self._server = uvicorn.Server(config)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="embedded-kinesis", daemon=True)

    @property
    def endpoint_url(self) -> str:
        return f"{self._scheme}://{self._host}:{self.port}"

    def start(self) -> None:
        """Return once requests are taken (the socket queues them until the loop runs)."""
        self._thread.start()

    def stop(self) -> None:
        """End all connections and the thread. No effect when stopped already."""
        self._server.should_exit = True
        loop = self._loop
        if loop is not None and not self._ended.is_set():
            try:
                loop.call_soon_threadsafe(self._application.wake_all)
            except RuntimeError:  # the loop was closed in between, as intended
                _log.debug("the event loop had ended already")
        if self._thread.is_alive():
            self._thread.join(_STOP_TIMEOUT_S)
        self._socket.close()

    def _run(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[self._socket])

        try:
            asyncio.run(serve())
        finally:
            self._ended.set()


# --- DynamoDB -------------------------------------------------------------------------------------


App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""A WSGI application."""

_TARGET = "DynamoDB_20120810."


class DynamoDbServer:
    """moto's DynamoDB on `host`; no other service of moto is served. moto keeps all tables of this
    process by account; each server has an account to itself. The tables stay when it is stopped.

    It answers one request at a time. moto checks a condition and then writes without a lock in
    between, so that of two conditional writes at once both would succeed.
    """

    def __init__(self, *, port: int = 0, host: str = LOOPBACK) -> None:
        self._port = port
        self._host = host
        self._account = f"{next(_accounts):012d}"
        self._server: BaseWSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to serve, after a `stop` at the same address. OSError if the port is taken."""
        try:
            from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
            from werkzeug.serving import make_server
        except ImportError as error:
            raise ModuleNotFoundError(
                "dynamodb=True needs moto's server: pip install 'moto[dynamodb]>=5.2.5' 'flask>=3' "
                "'flask-cors>=6' 'werkzeug>=3.1.4'"
            ) from error
        logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line per request otherwise
        app = in_account(self._account, one_at_a_time(create_backend_app("dynamodb")))
        app = only_dynamodb(app, self._host)
        with listen(self._port, self._host) as listening:  # werkzeug itself would end the process
            self._port = listening.getsockname()[1]
            self._server = make_server(
                self._host,
                self._port,
                app,
                threaded=True,
                request_handler=MotoRequestHandler,
                fd=listening.fileno(),
            )
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="embedded-dynamodb", daemon=True
        )
        self._thread.start()

    @property
    def endpoint_url(self) -> str:
        if self._server is None:
            raise RuntimeError("the DynamoDB server is not running")
        return f"http://{self._host}:{self._port}"

    def stop(self) -> None:
        """No effect when it is not running."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = self._thread = None


_accounts = count(1)
_answering = threading.Lock()
"""Of the whole process, as moto's tables are."""


def in_account(account: str, app: App) -> App:
    """Let an application of moto use the tables of one of its accounts."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        return app(environ | {"HTTP_X_MOTO_ACCOUNT_ID": account}, start_response)

    return answer


def one_at_a_time(app: App) -> App:
    """Let an application of moto answer one request at a time."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with _answering:
            return list(app(environ, start_response))

    return answer


def only_dynamodb(app: App, address: str) -> App:
    """Accept only requests of a DynamoDB client to `address`, and remove the headers that let web
    pages read the answer (CORS)."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        def without_cors(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            kept = [one for one in headers if not one[0].lower().startswith("access-control-")]
            return start_response(status, kept, *more)

        refused = _refusal(environ, address)
        if refused is None:
            return app(environ, without_cors)
        status, reason = refused
        body = reason.encode()
        headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))]
        start_response(status, [*headers, ("Connection", "close")])
        return [body]

    return answer


def _refusal(environ: dict[str, Any], address: str) -> tuple[str, str] | None:
    """Return the status and text with which a request is refused, or None if it is accepted."""
    reason = refusal(
        host=environ.get("HTTP_HOST"), origin=environ.get("HTTP_ORIGIN"), address=address
    )
    if reason is not None:
        return "403 Forbidden", reason
    if environ["REQUEST_METHOD"] != "POST" or environ.get("PATH_INFO") != "/":
        return "404 Not Found", "only POST / is served"
    if not environ.get("HTTP_X_AMZ_TARGET", "").startswith(_TARGET):
        return "400 Bad Request", f"only DynamoDB is served: X-Amz-Target {_TARGET}*"
    length = environ.get("CONTENT_LENGTH") or ""
    if not (length.isascii() and length.isdigit()):
        return "411 Length Required", "a Content-Length is required"
    if int(length) > MAX_BODY_BYTES:
        return "413 Content Too Large", f"at most {MAX_BODY_BYTES} bytes are taken"
    return None


# --- The wire form --------------------------------------------------------------------------------


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
        try:
            operation, request = _parse(headers, body)
        except KinesisError as error:
            with state.lock:
                state.calls.refused[error.code] += 1
            raise
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
            "found a request in CBOR, expected JSON. Switch CBOR off in the client: "
            "CBOR_ENABLED=false in its environment or -Daws.cborEnabled=false for the AWS SDK for "
            "Java 2, AWS_CBOR_DISABLE=true in its environment for version 1."
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
