"""Sends a POST on an open connection of urllib3's pool and reads the response.

urllib3 and `http.client` build and parse the headers of every exchange by general means, which
costs more than all other work on a small call. Here a request is one write, and a response with a
`Content-Length` is read after its few headers. urllib3 still opens, checks, keeps and closes the
connections, with its certificates, limits and connect time-out, and `http.client` reads any other
form of response.

The read time-out is a limit on the time without progress, not on the whole exchange, so that a
large request may take as long as a slow link needs: it starts again with each part that is sent,
and while the kernel still sends what it has buffered. Of a request that times out, no more bytes
leave: the connection is reset, so that the service does not carry out what is sent again.

A `Line` is a connection whose thread does not wait for each response, so that one thread has many
requests under way.

Errors are those of `HTTPConnectionPool.urlopen` without retries.
"""

from __future__ import annotations

import io
import select
import socket
import ssl
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http.client import HTTPException, HTTPResponse
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from urllib3.exceptions import HTTPError, ProtocolError, ReadTimeoutError, SSLError
from urllib3.util.ssl_match_hostname import CertificateError
from urllib3.util.wait import wait_for_read

if sys.platform != "win32":
    import fcntl
    import termios

if TYPE_CHECKING:
    from urllib3 import HTTPConnectionPool

_HEAD_END: Final = b"\r\n\r\n"
_WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_FIRST_READ: Final = 1 << 16
_SMALL: Final = 1 << 15
_TLS_RECORD: Final = 1 << 14
"""The most bytes of a record of TLS (RFC 8446, section 5.1). A call that sends more ends only after
all of it, and has one time limit."""
_LOOK_S: Final = 0.25
"""The time between two looks at the bytes that the kernel has not sent yet."""
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER without a time: closing the socket discards the bytes that are not sent yet."""


class Response(NamedTuple):
    """A response, and the time that its request took to leave this machine."""

    status: int
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: bytes
    send_seconds: float
    """At most `_LOOK_S` too long: until the last byte was acknowledged, where the system tells how
    many are not, else until the kernel had buffered it."""


def is_supported(pool: HTTPConnectionPool) -> bool:
    """Return whether the pool has the private methods that `post` calls."""
    return all(hasattr(pool, name) for name in ("_get_conn", "_put_conn", "_validate_conn"))


def header_lines(headers: Mapping[str, str]) -> str:
    """Return headers as a request has them. Raises ValueError for one that cannot be sent."""
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    text = "".join(lines)
    if text.count("\n") != len(lines) or text.count("\r") != len(lines) or "\0" in text:
        raise ValueError("a header with a control character")
    text.encode()
    return text


def post(pool: HTTPConnectionPool, headers: str, body: bytes) -> Response:
    """Send a POST to `/` of the pool's host and return the response. `headers` are `header_lines`,
    which include `Host`, and neither `Content-Length` nor `Accept-Encoding`. Raises
    `urllib3.exceptions.HTTPError` or OSError."""
    connection: Any = pool._get_conn()
    is_kept = False
    try:
        if getattr(connection, "sock", None) is None:
            _connect(pool, connection)
        response, is_kept = _exchange(connection.sock, pool, headers, body)
    except _BROKEN as error:
        if isinstance(error, TimeoutError):
            _discard_unsent(connection.sock)
        raise _pool_error(pool, error) from error
    finally:
        if not is_kept:
            connection.close()
        pool._put_conn(connection)
    return response


_BROKEN: Final = (CertificateError, HTTPException, OSError)
"""Errors after which a connection cannot be used. OSError includes those of TLS and time-outs."""


def _pool_error(pool: HTTPConnectionPool, error: Exception) -> HTTPError:
    """Return the error of `HTTPConnectionPool.urlopen` for one of `_BROKEN`."""
    match error:
        case TimeoutError():
            return ReadTimeoutError(pool, "/", "no progress within the read timeout")
        case ssl.SSLError() | CertificateError():
            return SSLError(error)
        case _:
            return ProtocolError("Connection aborted.", error)


def _discard_unsent(sock: Any) -> None:
    """Let no more bytes of the request leave when the socket is closed."""
    if sock is not None:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _connect(pool: HTTPConnectionPool, connection: Any) -> None:
    connection.timeout = pool.timeout.connect_timeout
    pool._validate_conn(connection)  # connects for HTTPS, and warns of a missing check
    if connection.sock is None:
        connection.connect()


def _exchange(
    sock: Any, pool: HTTPConnectionPool, headers: str, body: bytes
) -> tuple[Response, bool]:
    """Return the response, and whether the connection can be used again."""
    seconds: Any = pool.timeout.read_timeout  # the options always give one
    began = monotonic()
    if sock.gettimeout() != seconds:  # setting it is a system call
        sock.settimeout(seconds)
    head = _head(headers, len(body))
    # The service may refuse a request before it has received all of it.
    with suppress(BrokenPipeError, ConnectionResetError):
        if len(body) > _SMALL:  # a system call costs less than a copy
            _send_all(sock, head)
            _send_all(sock, body)
        else:
            _send_all(sock, head + body)
    received, sent_at = _first_part(sock, seconds, len(head) + len(body))
    sent_in = sent_at - began
    head_end = received.find(_HEAD_END)
    found = None if head_end < 0 else _usual_head(received[:head_end])
    if found is None:
        return _read_by_http_client(sock, received, sent_in)
    start, size = head_end + len(_HEAD_END), found.size
    if len(received) - start >= size:
        content = received[start : start + size]
        has_more = len(received) - start > size
    else:
        content, has_more = _read_rest(sock, memoryview(received)[start:], size), False
    return found.response(content, sent_in), found.keeps and not has_more


class _Head(NamedTuple):
    """The head of a response in the usual form."""

    status: int
    headers: Mapping[str, str]
    size: int
    """The length of the body."""
    keeps: bool
    """The connection stays open."""

    def response(self, body: bytes, send_seconds: float) -> Response:
        return Response(self.status, self.headers, body, send_seconds)


def _usual_head(received: bytes) -> _Head | None:
    """Return the head of a response of known length, or None for any other form."""
    lines = received.decode("latin-1").split("\r\n")
    found = _parse_headers(lines)
    length = found.get("content-length", "")
    status = lines[0][9:12]
    is_usual = (
        lines[0].startswith("HTTP/1.1 ")
        and status.isdecimal()
        and int(status) >= 200
        and len(found) == len(lines) - 1
        and length.isdecimal()
        and "transfer-encoding" not in found
    )
    if not is_usual:
        return None
    keeps = found.get("connection", "").lower() != "close"
    return _Head(int(status), found, int(length), keeps)


def _send_all(sock: Any, content: bytes) -> None:
    """Send all bytes. The time limit of the socket is on each part."""
    most = _TLS_RECORD if isinstance(sock, ssl.SSLSocket) else len(content)
    sent = sock.send(content[:most])
    if sent == len(content):
        return
    view = memoryview(content)
    while sent < len(content):
        sent += sock.send(view[sent : sent + most])


def _first_part(sock: Any, seconds: float, size: int) -> tuple[bytes, float]:
    """Return the first bytes of the response, and a time at which all of the request had left: its
    `size` bytes. Raises TimeoutError after `seconds` in which none has left."""
    unsent, progress_at = size, monotonic()
    try:
        while (wait := progress_at + seconds - monotonic()) > 0:
            sock.settimeout(min(wait, _LOOK_S) if unsent else wait)
            try:
                return sock.recv(_FIRST_READ), progress_at
            except TimeoutError:
                before, unsent = unsent, _unsent(sock)
                if unsent < before:
                    progress_at = monotonic()
    finally:
        sock.settimeout(seconds)
    raise TimeoutError("no byte has left or come")


def _unsent(sock: Any) -> int:
    """Return the number of bytes that the peer has not acknowledged; 0 if it is unknown."""
    if sys.platform == "win32":
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError):
        return 0


def _head(headers: str, length: int) -> bytes:
    return (
        f"POST / HTTP/1.1\r\nAccept-Encoding: identity\r\n{headers}Content-Length: {length}\r\n\r\n"
    ).encode()


def _parse_headers(lines: list[str]) -> dict[str, str]:
    found = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        found[name.lower()] = value.strip(" \t")
    return found


def _read_rest(sock: Any, begun: memoryview, size: int) -> bytes:
    content = bytearray(size)
    view = memoryview(content)
    count = len(begun)
    view[:count] = begun
    while count < size:
        read = sock.recv_into(view[count:])
        if not read:
            raise ConnectionResetError(f"the response ended after {count} of {size} bytes")
        count += read
    return bytes(content)


def _read_by_http_client(sock: Any, received: bytes, send_seconds: float) -> tuple[Response, bool]:
    replayed: Any = _Replay(sock, received)
    response = HTTPResponse(replayed, method="POST")
    response.begin()
    content = response.read()
    lower = {name.lower(): value for name, value in response.getheaders()}
    return Response(response.status, lower, content, send_seconds), not response.will_close


# --- Many requests of one thread ------------------------------------------------------------------


class Line:
    """A connection on which one thread sends a request, and reads the response as it arrives.

    Taken from a pool by `take_lines`, and given back or closed at the end. `send` and `receive`
    raise the errors of `post`, after which the line must be closed.
    """

    __slots__ = (
        "_arrived",
        "_connection",
        "_head",
        "_received",
        "_seconds",
        "_sock",
        "_start",
        "is_kept",
        "pool",
        "progress_at",
    )

    def __init__(self, pool: HTTPConnectionPool, connection: Any) -> None:
        self.pool = pool
        self._connection = connection
        self._sock = connection.sock
        self._seconds: Any = pool.timeout.read_timeout
        self._sock.settimeout(0)
        self._arrived = _poll_reads(self._sock)
        self._received: bytes | bytearray = b""
        self._head: _Head | None = None
        self._start = 0
        self.progress_at = monotonic()
        """The time at which the last bytes left or came."""
        self.is_kept = True
        """The connection can be used again: no response is to come."""

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return int(self._sock.fileno())

    def is_clean(self) -> bool:
        """Return whether a request can be sent: nothing has come that no request asked for, as the
        end of a connection that the peer has closed."""
        return self.is_kept and not self._arrived()

    def send(self, headers: str, body: bytes) -> None:
        """Send a POST, as `post` does."""
        content = _head(headers, len(body)) + body
        self._received, self._head, self.is_kept = b"", None, False
        try:
            self._send(content)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the service may refuse a request before it has received all of it
        except _BROKEN as error:
            raise self._failed(error) from error
        self.progress_at = monotonic()

    def _send(self, content: bytes) -> None:
        try:
            sent = self._sock.send(content[:_TLS_RECORD])
        except _WOULD_BLOCK:
            sent = 0
        if sent < len(content):  # hardly ever: nothing else is under way on this connection
            self._sock.settimeout(self._seconds)
            try:
                _send_all(self._sock, content[sent:])
            finally:
                self._sock.settimeout(0)

    def receive(self) -> Response | None:
        """Return the response, or None if more of it has to arrive. Call it when the descriptor is
        ready, or from time to time: it raises the error of a time-out."""
        try:
            while True:
                try:
                    part = self._sock.recv(_FIRST_READ)
                except _WOULD_BLOCK:
                    if monotonic() - self.progress_at > self._seconds:
                        raise TimeoutError("no byte has left or come") from None
                    return None
                if not part:
                    return self._last_response()
                self._append(part)
                response = self._response()
                if response is not None:
                    return response
        except _BROKEN as error:
            raise self._failed(error) from error

    def _append(self, part: bytes) -> None:
        self.progress_at = monotonic()
        if not self._received:
            self._received = part
            return
        if isinstance(self._received, bytes):
            self._received = bytearray(self._received)
        self._received += part

    def _response(self) -> Response | None:
        """Return the response once all of it is here."""
        received = self._received
        if self._head is None:
            end = received.find(_HEAD_END)
            if end < 0:
                return None
            self._head, self._start = _usual_head(bytes(received[:end])), end + len(_HEAD_END)
            if self._head is None:
                return self._unusual_response()
        end = self._start + self._head.size
        if len(received) < end:
            return None
        self.is_kept = self._head.keeps and len(received) == end
        return self._head.response(bytes(received[self._start : end]), 0.0)

    def _last_response(self) -> Response:
        """Return the response of a connection that has ended."""
        if self._head is not None:
            raise ConnectionResetError("the connection ended within a response")
        return self._unusual_response()

    def _unusual_response(self) -> Response:
        """Wait for the rest of a response whose length the head does not tell: emulators send such
        ones, the service does not."""
        self._sock.settimeout(self._seconds)
        response, self.is_kept = _read_by_http_client(self._sock, bytes(self._received), 0.0)
        self._sock.settimeout(0)
        return response

    def _failed(self, error: Exception) -> HTTPError:
        if isinstance(error, TimeoutError):
            _discard_unsent(self._sock)
        self.is_kept = False
        return _pool_error(self.pool, error)

    def give_back(self) -> None:
        """Return the connection to its pool: open if it can be used again, else closed."""
        if self.is_clean():
            self._sock.settimeout(self._seconds)
        else:
            self._connection.close()
        self.pool._put_conn(self._connection)


def _poll_reads(sock: Any) -> Callable[[], object]:
    """Return a function that returns something true if the socket can be read now."""
    if sys.platform == "win32":
        return partial(wait_for_read, sock, 0)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return partial(poll.poll, 0)


def take_lines(pool: HTTPConnectionPool, most: int) -> list[Line]:
    """Take up to `most` open connections from the pool; none is opened."""
    lines: list[Line] = []
    unopened: list[Any] = []
    made = pool.num_connections
    while len(lines) < most and pool.num_connections == made:  # else the pool has no more
        connection: Any = pool._get_conn()
        if getattr(connection, "sock", None) is None:  # the peer has closed it meanwhile
            unopened.append(connection)
        else:
            lines.append(Line(pool, connection))
    for connection in unopened:
        pool._put_conn(connection)
    return lines


class _Replay(io.RawIOBase):
    """The bytes of a socket, after those that were read from it already."""

    def __init__(self, sock: Any, received: bytes) -> None:
        self._sock = sock
        self._received = received

    def makefile(self, *_: object) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._received:
            return int(self._sock.recv_into(buffer))
        part = self._received[: len(buffer)]
        buffer[: len(part)] = part
        self._received = self._received[len(part) :]
        return len(part)
