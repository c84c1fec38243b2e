"""A server on loopback between a client and an AWS service, which records each request."""

from __future__ import annotations

import http.client
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self
from urllib.parse import urlsplit

_CONNECTION: Final = frozenset({"connection", "transfer-encoding", "content-length", "keep-alive"})
"""Headers of one connection (RFC 9110, 7.6.1), and the length, which the body determines."""
_CHUNK: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A request. `target` is the header X-Amz-Target."""

    method: str
    path: str
    target: str
    body: bytes
    status: int


class RecordingProxy:
    """A context manager: the service of `upstream` at `url`. Port 0 is any that is free."""

    def __init__(self, upstream: str) -> None:
        self.requests: list[Recorded] = []
        proxy = self
        address = urlsplit(upstream).netloc

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                headers = {k: v for k, v in self.headers.items() if k.lower() != "expect"}
                connection = http.client.HTTPConnection(address, timeout=60)
                try:
                    connection.request(self.command, self.path, body, headers)
                    answer = connection.getresponse()
                    proxy.requests.append(
                        Recorded(
                            method=self.command,
                            path=self.path,
                            target=self.headers.get("X-Amz-Target", ""),
                            body=body,
                            status=answer.status,
                        )
                    )
                    self._pass_on(answer)
                except OSError:
                    self.close_connection = True
                finally:
                    connection.close()

            do_GET = do_HEAD = do_PUT = do_DELETE = do_POST

            def _pass_on(self, answer: http.client.HTTPResponse) -> None:
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in _CONNECTION:
                        self.send_header(name, value)
                if answer.length is not None or self.command == "HEAD":
                    self.send_header("Content-Length", answer.getheader("Content-Length") or "0")
                    self.end_headers()
                    self.wfile.write(answer.read())
                    self.wfile.flush()
                    return
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                while chunk := answer.read1(_CHUNK):
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")
                self.wfile.flush()

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
