"""An HTTP server on loopback that answers by a test's script, in order, and records requests. It
does not implement Kinesis: it is for misbehaviour (dropped connections, cut bodies, HTML instead of
JSON, silence)."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs

import boto3
import orjson
from botocore.awsrequest import HeadersDict

from spark_ssp.common.aws.clients import client_config
from spark_ssp.common.aws.service_calls import RetrySettings
from spark_ssp.grouping.identifiers import ShardId, StreamName
from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis
from spark_ssp.kinesis_source.model.shard import ShardIterator, StreamRef
from spark_ssp.kinesis_source.options.values import ConnectionOptions
from tests.support.fakes.clocks import ManualTime

JSON = "application/x-amz-json-1.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole answer. `date` is in seconds since the epoch; None leaves the header out."""

    status: int = 200
    body: bytes = b"{}"
    content_type: str = JSON
    date: float | None = 1_700_000_000
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drop:
    """The connection is closed instead of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A good status, then only the first part of the body that was announced."""

    body: bytes
    sent: int


@dataclass(frozen=True, slots=True)
class Silence:
    """No answer until the server stops."""


@dataclass(frozen=True, slots=True)
class Packets:
    """An answer as it goes over the wire, head and all: a packet for each part. The connection is
    closed after it, unless it is `kept`."""

    parts: Sequence[bytes]
    kept: bool = True


Step = Reply | Drop | Cut | Silence | Packets

_BETWEEN_PACKETS_S = 0.01
"""So that the client has read one before the next one comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request: the API's operation (or the form's `Action`), headers in any case, and body."""

    operation: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body, parsed."""
        parsed: dict[str, Any] = orjson.loads(self.body)
        return parsed


def reply(content: object, *, status: int = 200, date: float | None = 1_700_000_000) -> Reply:
    """An answer in JSON."""
    return Reply(status=status, body=orjson.dumps(content), date=date)


def refusal(code: str, message: str = "no", *, status: int = 400) -> Reply:
    """Return an error answer in the form of Kinesis."""
    return reply({"__type": code, "message": message}, status=status)


def assumed(name: str, *, lives: timedelta = timedelta(hours=1)) -> Reply:
    """The answer of STS to AssumeRole: credentials whose parts contain `name`."""
    expires = (datetime.now(UTC) + lives).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = (
        '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>'
        f"<Credentials><AccessKeyId>AKID{name}</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
        f"<SessionToken>token-{name}</SessionToken><Expiration>{expires}</Expiration>"
        "</Credentials><AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/reader/s</Arn>"
        "<AssumedRoleId>A:s</AssumedRoleId></AssumedRoleUser></AssumeRoleResult>"
        "</AssumeRoleResponse>"
    )
    return Reply(body=body.encode(), content_type="text/xml")


def sts_refusal(code: str, status: int) -> Reply:
    """An error answer in the form of STS."""
    body = (
        f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code>"
        "<Message>User: arn:aws:iam::1:user/me is not authorized</Message></Error></ErrorResponse>"
    )
    return Reply(status=status, body=body.encode(), content_type="text/xml")


class ScriptedHttp:
    """Serves each step once, in order; the last one again and again. A context manager. With `tls`
    over TLS. Port 0 is any that is free. `before` is called before each answer."""

    def __init__(
        self,
        *steps: Step,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        self._steps = deque(steps)
        self._before = before
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self.requests: list[Request] = []
        self.connections = 0
        self._scheme = "http" if tls is None else "https"
        self._server = _Server(self, tls, port)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._server.shutdown()
        try:
            self._server.close_connections()
        finally:
            self._server.server_close()
            self._thread.join()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def operations(self) -> list[str]:
        """The operations requested so far, in order."""
        return [request.operation for request in self.requests]

    def _answer(self, handler: _Handler) -> None:
        with self._lock:
            self.requests.append(handler.request_seen())
            step = self._steps.popleft() if len(self._steps) > 1 else self._steps[0]
        self._before()
        match step:
            case Reply():
                handler.say(step)
            case Cut(body=body, sent=sent):
                handler.say(Reply(body=body[:sent]), announced=len(body))
                handler.close_connection = True
            case Drop():
                handler.close_connection = True
            case Packets(parts=parts, kept=kept):
                for part in parts:
                    handler.wfile.write(part)
                    handler.wfile.flush()
                    time.sleep(_BETWEEN_PACKETS_S)
                handler.close_connection = not kept
            case Silence():
                self._stopped.wait()
                handler.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, script: ScriptedHttp, tls: ssl.SSLContext | None, port: int) -> None:
        self.script = script
        self._open: set[socket.socket] = set()
        self._closing = threading.Lock()  # a handler's thread closes its connection
        super().__init__(("127.0.0.1", port), _Handler)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.script.connections += 1
        with self._closing:
            self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        with self._closing:
            self._open.discard(request)
            super().shutdown_request(request)

    def close_connections(self) -> None:
        with self._closing:
            for connection in self._open:
                try:
                    # Wakes the thread that waits for a next request on a connection kept alive.
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError as error:
                    if error.errno != errno.ENOTCONN:  # the client has reset it: nothing waits
                        raise


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet for an answer: the client would delay its acknowledgement
    server: _Server

    def do_POST(self) -> None:
        self.server.script._answer(self)

    def request_seen(self) -> Request:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        target = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
        action = parse_qs(body.decode("utf-8")).get("Action", [""])[0]
        return Request(
            operation=target or action, headers=HeadersDict(self.headers.items()), body=body
        )

    def say(self, step: Reply, *, announced: int | None = None) -> None:
        self.send_response_only(step.status)
        if step.date is not None:
            self.send_header("Date", formatdate(step.date, usegmt=True))
        self.send_header("Content-Type", step.content_type)
        self.send_header("Content-Length", str(announced or len(step.body)))
        for name, value in step.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(step.body)


ORDERS = StreamRef(name=StreamName("orders"))
BY_ARN = StreamRef(name=ORDERS.name, arn="arn:aws:kinesis:us-east-1:123456789012:stream/orders")
SHARD = ShardId("shardId-000000000000")
ITERATOR = ShardIterator("AAAA")
DATE = 1_700_000_000
PAGE = {
    "Records": [
        {
            "SequenceNumber": "49",
            "ApproximateArrivalTimestamp": 1_699_999_999.5,
            "Data": "aGVsbG8=",
            "PartitionKey": "k",
        }
    ],
    "NextShardIterator": "BBBB",
    "MillisBehindLatest": 0,
}
GOOD = reply(PAGE)
HTML = b"<!DOCTYPE html><html><body>Bad Gateway \xff</body></html>"
SUMMARY: dict[str, object] = {
    "StreamName": "orders",
    "StreamARN": BY_ARN.arn,
    "StreamStatus": "ACTIVE",
    "RetentionPeriodHours": 24,
    "StreamCreationTimestamp": 1_600_000_000.123,
    "OpenShardCount": 2,
    "EnhancedMonitoring": [],
}
DESCRIBED = reply({"StreamDescriptionSummary": SUMMARY})


KEYS: dict[str, Any] = {
    "region_name": "us-east-1",
    "aws_access_key_id": "test",
    "aws_secret_access_key": "test-secret",
}
SESSION = boto3.Session(**KEYS)


def client(
    url: str, clock: ManualTime | None = None, *, read_timeout_ms: int = 30_000
) -> Boto3Kinesis:
    clock = clock or ManualTime()
    config = client_config(ConnectionOptions(read_timeout_ms=read_timeout_ms))
    return Boto3Kinesis(
        SESSION.client("kinesis", endpoint_url=url, config=config),
        retry=RetrySettings(max_attempts=4, max_backoff=1.0),
        monotonic=clock.monotonic,
        sleep=clock.sleep,
        random=lambda: 0.5,
    )


def fetch(service: Boto3Kinesis, *, retry: bool = True) -> list[bytes]:
    page = service.get_records(ORDERS, SHARD, ITERATOR, limit=10, retry=retry)
    return list(page.data)


def shard_entry(number: int) -> dict[str, object]:
    return {
        "ShardId": f"shardId-{number:012}",
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
        "SequenceNumberRange": {"StartingSequenceNumber": "49"},
    }
