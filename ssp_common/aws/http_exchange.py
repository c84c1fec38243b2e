"""Sends a POST on an open connection of urllib3's pool and reads the response.

urllib3 and `http.client` build and parse the headers of every exchange by general means, which
costs more than all other work on a small call. Here a request is one write, and a response with a
`Content-Length` is read after its few headers. urllib3 still opens, checks, keeps and closes the
connections, with its certificates, limits and time-outs, and `http.client` reads any other form of
response.

Errors are those of `HTTPConnectionPool.urlopen` without retries.
"""

from __future__ import annotations

import io
import ssl
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Any, Final

from urllib3.exceptions import ProtocolError, ReadTimeoutError, SSLError
from urllib3.util.retry import Retry

if TYPE_CHECKING:
    from urllib3 import HTTPConnectionPool

Response = tuple[int, Mapping[str, str], bytes]
"""Status, headers by their names in lower case, and body."""

_HEAD_END: Final = b"\r\n\r\n"
_FIRST_READ: Final = 1 << 16
_SMALL: Final = 1 << 15
_NO_RETRIES: Final = Retry(False)


def is_supported(pool: HTTPConnectionPool) -> bool:
    """Return whether the pool has the private methods that `post` calls."""
    return hasattr(pool, "_get_conn") and hasattr(pool, "_put_conn")


def post(pool: HTTPConnectionPool, headers: Mapping[str, str], body: bytes) -> Response:
    """Send a POST to `/` of the pool's host and return the response.

    `headers` include `Host`, and neither `Content-Length` nor `Accept-Encoding`. Raises
    `urllib3.exceptions.HTTPError`, OSError, or ValueError for a header that cannot be sent, whose
    text may contain the header.
    """
    connection: Any = pool._get_conn()
    if getattr(connection, "sock", None) is None:  # opened by urllib3, which has much to check
        pool._put_conn(connection)
        return _post_by_urllib3(pool, headers, body)
    is_kept = False
    try:
        response, is_kept = _exchange(connection.sock, pool, headers, body)
    except TimeoutError as error:
        raise ReadTimeoutError(pool, "/", "no response within the read timeout") from error
    except ssl.SSLError as error:
        raise SSLError(error) from error
    except (OSError, HTTPException) as error:
        raise ProtocolError("Connection aborted.", error) from error
    finally:
        if not is_kept:
            connection.close()
        pool._put_conn(connection)
    return response


def _post_by_urllib3(pool: HTTPConnectionPool, headers: Mapping[str, str], body: bytes) -> Response:
    # As bytes, as botocore sends them: text that is not ASCII would be encoded differently.
    encoded: Any = {name: value.encode() for name, value in headers.items()}
    response = pool.urlopen(
        "POST",
        "/",
        body=body,
        headers=encoded,
        retries=_NO_RETRIES,
        assert_same_host=False,
        preload_content=False,
        decode_content=False,
    )
    lower = {name.lower(): value for name, value in response.headers.items()}
    return response.status, lower, response.read()


def _exchange(
    sock: Any, pool: HTTPConnectionPool, headers: Mapping[str, str], body: bytes
) -> tuple[Response, bool]:
    """Return the response, and whether the connection can be used again."""
    sock.settimeout(pool.timeout.read_timeout)
    # The service may refuse a request before it has received all of it.
    with suppress(BrokenPipeError, ConnectionResetError):
        head = _head(headers, len(body))
        if len(body) > _SMALL:  # a system call costs less than a copy
            sock.sendall(head)
            sock.sendall(body)
        else:
            sock.sendall(head + body)
    received = sock.recv(_FIRST_READ)
    end = received.find(_HEAD_END)
    if end < 0:
        return _read_by_http_client(sock, received)
    lines = received[:end].decode("latin-1").split("\r\n")
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
        return _read_by_http_client(sock, received)
    start, size = end + len(_HEAD_END), int(length)
    if len(received) - start >= size:
        content = received[start : start + size]
        has_more = len(received) - start > size
    else:
        content, has_more = _read_rest(sock, memoryview(received)[start:], size), False
    is_kept = found.get("connection", "").lower() != "close" and not has_more
    return (int(status), found, content), is_kept


def _head(headers: Mapping[str, str], length: int) -> bytes:
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    text = "".join(lines)
    if text.count("\n") != len(lines) or text.count("\r") != len(lines) or "\0" in text:
        raise ValueError("a header with a control character")
    return (
        f"POST / HTTP/1.1\r\nAccept-Encoding: identity\r\n{text}Content-Length: {length}\r\n\r\n"
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


def _read_by_http_client(sock: Any, received: bytes) -> tuple[Response, bool]:
    replayed: Any = _Replay(sock, received)
    response = HTTPResponse(replayed, method="POST")
    response.begin()
    content = response.read()
    lower = {name.lower(): value for name, value in response.getheaders()}
    return (response.status, lower, content), not response.will_close


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
