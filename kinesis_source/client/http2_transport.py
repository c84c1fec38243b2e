"""Sends requests on HTTP/2 by awscrt: all subscriptions of a task on one connection.

The window of each stream bounds the bytes that the service sends before they are read, so a slow
reader holds back only its own shard. awscrt cannot cancel a stream: one that is no longer read
receives nothing more once its window is used up, and ends with the connection. A connection that
takes no more streams, or has failed, is replaced, and closed when nobody reads from it.

awscrt does not read AWS's configuration: credentials, endpoint and certificates are botocore's. Its
threads start with the first connection of a process, so after PySpark has forked it.
"""

from __future__ import annotations

import io
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from awscrt import http
from awscrt.io import ClientBootstrap, ClientTlsContext, SocketOptions, TlsContextOptions
from botocore.awsrequest import AWSResponse
from botocore.utils import get_environ_proxies

from spark_ssp.common.times import seconds_text

_PORT: Final = 443
_NO_HTTP2: Final = "AWS_ERROR_HTTP_UNSUPPORTED_PROTOCOL"
_MAX_ATTEMPTS: Final = 4
"""The most connections on which a request is sent."""

Address = tuple[str, int]


class Http2Error(OSError):
    """The connection or the stream failed."""


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection that is open or being opened. `requests`: their number so far; `readers`: the
    number of responses that are being read."""

    opening: Future[http.Http2ClientConnection]
    requests: int = 0
    readers: int = 0

    @property
    def is_usable(self) -> bool:
        if not self.opening.done():
            return True
        return self.opening.exception() is None and self.opening.result().is_open()

    def close(self) -> None:
        """Close it, and with it all its streams."""
        self.opening.add_done_callback(_close)


def _close(opening: Future[http.Http2ClientConnection]) -> None:
    if opening.exception() is None:
        opening.result().close()


class Http2Transport:
    """A connection to one host, opened at the first request and again after it has failed.
    Thread-safe; not to be used after a fork. `window` is in bytes, times are in seconds.
    `certificates` is the path of a file of trusted certificates."""

    def __init__(
        self, *, window: int, certificates: str, connect_timeout: float, silence: float
    ) -> None:
        self._window = window
        self._certificates = certificates
        self._connect_timeout = connect_timeout
        self._silence = silence
        self._lock = threading.Lock()
        self._current: dict[Address, _Connection] = {}
        self._retired: set[_Connection] = set()

    def send(self, request: Any) -> AWSResponse | None:
        """Send a prepared request of botocore; return its response once its headers are received,
        or None if botocore has to call the URL: without TLS, by a proxy (botocore chooses
        one by the regional endpoint, and SubscribeToShard may go to that of the account), or at a
        host without HTTP/2.

        A request that fails on a connection with other streams is sent again on another one: the
        host may allow no further streams, or be closing it. Raises OSError.
        """
        url = urlsplit(request.url)
        if url.scheme != "https" or get_environ_proxies(request.url):
            return None
        address = url.hostname or "", url.port or _PORT
        for attempt in count(1):
            connection = self._begin(address)
            exchange = _Exchange(self._silence, partial(self._end, address, connection))
            try:
                native = connection.opening.result(timeout=self._connect_timeout)
                message = _to_message(request, _host_of(url), url.path or "/")
                status, headers = exchange.start(native, message)
            except TimeoutError:
                exchange.close(failed=True)
                raise TimeoutError(f"no response within {seconds_text(self._silence)}") from None
            except Exception as error:  # noqa: BLE001 - not all of awscrt's have a class of its own
                exchange.close(failed=True)
                name = _name_of(error)
                if name == _NO_HTTP2:
                    return None
                is_open = connection.opening.exception() is None
                if not is_open or connection.requests == 1 or attempt == _MAX_ATTEMPTS:
                    raise Http2Error(name) from None
            else:
                fields: Any = dict(headers)
                return AWSResponse(request.url, status, fields, exchange)
        raise AssertionError("the last attempt ends")

    def close(self) -> None:
        """Close the connections, and with them all streams."""
        with self._lock:
            for connection in (*self._current.values(), *self._retired):
                connection.close()
            self._current.clear()
            self._retired.clear()

    def _begin(self, address: Address) -> _Connection:
        """Return the connection for a request. Requests that come while it is being opened share
        the attempt."""
        with self._lock:
            known = self._current.get(address)
            if known is None or not known.is_usable:
                known = self._current[address] = _Connection(opening=self._open(*address))
            known.requests += 1
            known.readers += 1
            return known

    def _end(self, address: Address, connection: _Connection, *, failed: bool) -> None:
        """Record that a response is no longer read."""
        with self._lock:
            connection.readers -= 1
            if failed and self._current.get(address) is connection:
                del self._current[address]
                self._retired.add(connection)
            if connection in self._retired and not connection.readers:
                self._retired.remove(connection)
                connection.close()

    def _open(self, host: str, port: int) -> Future[http.Http2ClientConnection]:
        context_options = TlsContextOptions()
        context_options.override_default_trust_store_from_path(ca_filepath=self._certificates)
        tls = ClientTlsContext(context_options).new_connection_options()
        tls.set_alpn_list(["h2"])
        tls.set_server_name(host)
        socket_options = SocketOptions()
        socket_options.connect_timeout_ms = round(self._connect_timeout * 1000)
        opening: Future[http.Http2ClientConnection] = http.Http2ClientConnection.new(
            host_name=host,
            port=port,
            bootstrap=ClientBootstrap.get_or_create_static_default(),
            socket_options=socket_options,
            tls_connection_options=tls,
            manual_window_management=True,
            initial_window_size=self._window,
        )
        return opening


class _Exchange:
    """A request and the body of its response. awscrt's threads call the methods `on_...`; the
    response is read by one thread. `on_end` is called once."""

    def __init__(self, silence: float, on_end: Callable[..., None]) -> None:
        self._silence = silence
        self._on_end = on_end
        self._response: Future[tuple[int, Sequence[tuple[str, str]]]] = Future()
        self._chunks: queue.SimpleQueue[bytes | Exception | None] = queue.SimpleQueue()
        self._http_stream: http.Http2ClientStream | None = None
        self._is_closed = False

    def start(
        self, connection: http.Http2ClientConnection, message: http.HttpRequest
    ) -> tuple[int, Sequence[tuple[str, str]]]:
        """Send the request; return the status and the headers of the response."""
        stream = connection.request(message, on_response=self.on_response, on_body=self.on_body)
        self._http_stream = stream
        stream.completion_future.add_done_callback(self.on_complete)
        stream.activate()
        return self._response.result(timeout=self._silence)

    def on_response(
        self, *, status_code: int, headers: Sequence[tuple[str, str]], **_: object
    ) -> None:
        self._response.set_result((status_code, headers))

    def on_body(self, *, chunk: bytes, **_: object) -> None:
        if not self._is_closed:
            self._chunks.put(bytes(chunk))

    def on_complete(self, completion: Future[int]) -> None:
        error = completion.exception()
        fault = None if error is None else Http2Error(_name_of(error))
        if not self._response.done():
            self._response.set_exception(fault or Http2Error("an end without a response"))
        self._chunks.put(fault)

    def stream(self) -> Iterator[bytes]:
        while True:
            try:
                chunk = self._chunks.get(timeout=self._silence)
            except queue.Empty:
                self.close(failed=True)
                raise TimeoutError(f"nothing received for {seconds_text(self._silence)}") from None
            if chunk is None:
                self.close()
                return
            if isinstance(chunk, Exception):
                self.close(failed=True)
                raise chunk
            if self._http_stream is not None:
                self._http_stream.update_window(len(chunk))
            yield chunk

    def close(self, *, failed: bool = False) -> None:
        """Read no more. `failed`: the connection may be the reason."""
        if not self._is_closed:
            self._is_closed = True
            self._chunks = queue.SimpleQueue()  # what was received and is not read
            self._on_end(failed=failed)


def _name_of(error: BaseException) -> str:
    """Return awscrt's name of an error, or the name of its class. Messages may contain data."""
    return getattr(error, "name", None) or type(error).__name__


def _host_of(url: SplitResult) -> str:
    """Return the header `host` as botocore signs it, without the default port (RFC 9110, 4.2.3)."""
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname or ""
    return host if url.port in (None, _PORT) else f"{host}:{url.port}"


def _to_message(request: Any, host: str, path: str) -> http.HttpRequest:
    body = request.body or b""
    if isinstance(body, str):
        body = body.encode()
    headers = http.HttpHeaders([("host", host), ("content-length", str(len(body)))])
    for name, value in request.headers.items():
        if name.lower() not in ("host", "content-length"):
            headers.add(name.lower(), value.decode() if isinstance(value, bytes) else value)
    return http.HttpRequest(request.method, path, headers, io.BytesIO(body))
