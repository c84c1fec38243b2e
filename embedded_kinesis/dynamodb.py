"""DynamoDB beside the embedded Kinesis, by moto: for lease tables and the like."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moto.server import ThreadedMotoServer

_App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""A WSGI application."""

_HOST = "127.0.0.1"


class DynamoDbServer:
    """moto's server on 127.0.0.1. Its tables live in this process: two servers share them.

    It answers one request at a time. moto checks a condition and then writes without a lock in
    between, so that of two conditional writes at once both would succeed.
    """

    def __init__(self, *, port: int = 0) -> None:
        self._port = port
        self._server: ThreadedMotoServer | None = None

    def start(self) -> None:
        try:
            from moto.server import ThreadedMotoServer
        except ImportError as error:
            raise ModuleNotFoundError(
                "dynamodb=True needs moto's server: pip install '.[local]' in a checkout"
            ) from error
        logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line per request otherwise
        self._server = ThreadedMotoServer(ip_address=_HOST, port=self._port, verbose=False)
        self._server.start()
        serving = self._server._server
        if serving is None:
            raise RuntimeError("moto's server did not start")
        serving.app = _one_at_a_time(serving.app)

    @property
    def endpoint_url(self) -> str:
        if self._server is None:
            raise RuntimeError("the DynamoDB server is not running")
        return f"http://{_HOST}:{self._server.get_host_and_port()[1]}"

    def stop(self) -> None:
        """No effect when it is not running."""
        if self._server is not None:
            self._server.stop()
            self._server = None


_answering = threading.Lock()
"""Of the whole process, as moto's tables are."""


def _one_at_a_time(app: _App) -> _App:
    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with _answering:
            return list(app(environ, start_response))

    return answer
