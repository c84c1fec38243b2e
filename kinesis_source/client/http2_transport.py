"""Sends requests on HTTP/2 by awscrt: all subscriptions of a task on one connection.

The window of each stream bounds the bytes that the service sends before they are read, so a slow
reader holds back only its own shard. awscrt cannot cancel a stream: one that is no longer read
receives nothing more once its window is used up, and ends with the connection.

awscrt does not read AWS's configuration: credentials, endpoint and certificates are botocore's.
"""

from __future__ import annotations

import io
import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final
from urllib.parse import urlsplit

from awscrt import http
from awscrt.exceptions import AwsCrtError
from awscrt.io import ClientBootstrap, ClientTlsContext, SocketOptions, TlsContextOptions
from botocore.awsrequest import AWSResponse

_PORT: Final = 443


class Http2Error(OSError):
    """The connection or the stream failed."""


class Http2Transport:
    """A connection to one host, opened at the first request and again after it has broken.

    Thread-safe; not to be used after a fork. `window` is in bytes, times are in seconds.
    `certificates` is the path of a file of trusted certificates.
    """

    def __init__(
        self, *, window: int, certificates: str, connect_timeout: float, silence: float
    ) -> None:
        self._window = window
        self._certificates = certificates
        self._connect_timeout = connect_timeout
        self._silence = silence
        self._lock = threading.Lock()
        self._connections: dict[tuple[str, int], http.Http2ClientConnection] = {}

    def send(self, request: Any) -> AWSResponse:
        """Send a prepared request of botocore; return its response once its headers are received.

        Raises OSError.
        """
        address = urlsplit(request.url)
        host, port = address.hostname or "", address.port or _PORT
        exchange = _Exchange(self._silence)
        try:
            stream = self._connection(host, port).request(
                _to_request(request, address.netloc, address.path or "/"),
                on_response=exchange.on_response,
                on_body=exchange.on_body,
            )
            exchange.http_stream = stream
            stream.completion_future.add_done_callback(exchange.on_complete)
            stream.activate()
            status, headers = exchange.response.result(timeout=self._silence)
        except AwsCrtError as error:
            raise Http2Error(error.name) from None
        except FutureTimeoutError:
            exchange.close()
            raise TimeoutError(f"no response within {self._silence:g} s") from None
        fields: Any = dict(headers)
        return AWSResponse(request.url, status, fields, exchange)

    def close(self) -> None:
        """Close the connections, and with them all streams."""
        with self._lock:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    def _connection(self, host: str, port: int) -> http.Http2ClientConnection:
        with self._lock:
            known = self._connections.get((host, port))
            if known is None or not known.is_open():
                known = self._connections[host, port] = self._connect(host, port)
            return known

    def _connect(self, host: str, port: int) -> http.Http2ClientConnection:
        context_options = TlsContextOptions()
        context_options.override_default_trust_store_from_path(ca_filepath=self._certificates)
        tls = ClientTlsContext(context_options).new_connection_options()
        tls.set_alpn_list(["h2"])
        tls.set_server_name(host)
        socket_options = SocketOptions()
        socket_options.connect_timeout_ms = round(self._connect_timeout * 1000)
        connecting = http.Http2ClientConnection.new(
            host_name=host,
            port=port,
            bootstrap=ClientBootstrap.get_or_create_static_default(),
            socket_options=socket_options,
            tls_connection_options=tls,
            manual_window_management=True,
            initial_window_size=self._window,
        )
        connection: http.Http2ClientConnection = connecting.result(timeout=self._connect_timeout)
        return connection


class _Exchange:
    """A request and the body of its response. awscrt's threads call the methods `on_...`; the
    response is read by one thread."""

    def __init__(self, silence: float) -> None:
        self.response: Future[tuple[int, Sequence[tuple[str, str]]]] = Future()
        self.http_stream: http.Http2ClientStream | None = None
        self._silence = silence
        self._chunks: queue.SimpleQueue[bytes | Exception | None] = queue.SimpleQueue()
        self._is_closed = False

    def on_response(
        self, *, status_code: int, headers: Sequence[tuple[str, str]], **_: object
    ) -> None:
        self.response.set_result((status_code, headers))

    def on_body(self, *, chunk: bytes, **_: object) -> None:
        if not self._is_closed:
            self._chunks.put(bytes(chunk))

    def on_complete(self, completion: Future[int]) -> None:
        error = completion.exception()
        name = getattr(error, "name", None) or type(error).__name__
        fault = None if error is None else Http2Error(name)
        if not self.response.done():
            self.response.set_exception(fault or Http2Error("an end without a response"))
        self._chunks.put(fault)

    def stream(self) -> Iterator[bytes]:
        while True:
            try:
                chunk = self._chunks.get(timeout=self._silence)
            except queue.Empty:
                raise TimeoutError(f"nothing received for {self._silence:g} s") from None
            if chunk is None:
                return
            if isinstance(chunk, Exception):
                raise chunk
            if self.http_stream is not None:
                self.http_stream.update_window(len(chunk))
            yield chunk

    def close(self) -> None:
        self._is_closed = True


def _to_request(request: Any, host: str, path: str) -> http.HttpRequest:
    body = request.body or b""
    if isinstance(body, str):
        body = body.encode()
    headers = http.HttpHeaders([("host", host), ("content-length", str(len(body)))])
    for name, value in request.headers.items():
        if name.lower() not in ("host", "content-length"):
            headers.add(name.lower(), value.decode() if isinstance(value, bytes) else value)
    return http.HttpRequest(request.method, path, headers, io.BytesIO(body))
