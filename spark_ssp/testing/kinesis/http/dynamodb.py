"""DynamoDB beside the embedded Kinesis, by moto: for lease tables and the like."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from spark_ssp.testing.kinesis.http.guard import MAX_BODY_BYTES, refusal
from spark_ssp.testing.kinesis.http.listening import LOOPBACK, listen

if TYPE_CHECKING:
    from werkzeug.serving import BaseWSGIServer

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""A WSGI application."""

_TARGET = "DynamoDB_20120810."


class DynamoDbServer:
    """moto's DynamoDB on `host`; no other service of moto is served. Its tables are kept in this
    process, so two servers share them.

    It answers one request at a time. moto checks a condition and then writes without a lock in
    between, so that of two conditional writes at once both would succeed.
    """

    def __init__(self, *, port: int = 0, host: str = LOOPBACK) -> None:
        self._port = port
        self._host = host
        self._server: BaseWSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to serve; OSError when the port is taken."""
        try:
            from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
            from werkzeug.serving import make_server
        except ImportError as error:
            raise ModuleNotFoundError(
                "dynamodb=True needs moto's server: pip install 'spark-ssp[local]'"
            ) from error
        logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line per request otherwise
        app = only_dynamodb(one_at_a_time(create_backend_app("dynamodb")), self._host)
        with listen(self._port, self._host) as listening:  # werkzeug itself would end the process
            self._server = make_server(
                self._host,
                listening.getsockname()[1],
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
        return f"http://{self._host}:{self._server.server_address[1]}"

    def stop(self) -> None:
        """No effect when it is not running."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = self._thread = None


_answering = threading.Lock()
"""Of the whole process, as moto's tables are."""


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
