"""The HTTP server: a thread with one event loop."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from spark_ssp.testing.kinesis.api.dispatch import KinesisState
from spark_ssp.testing.kinesis.core.errors import NoAnswer
from spark_ssp.testing.kinesis.http.event_stream import CONTENT_TYPE, encode_event, initial_response
from spark_ssp.testing.kinesis.http.guard import MAX_BODY_BYTES, refusal
from spark_ssp.testing.kinesis.http.listening import listen
from spark_ssp.testing.kinesis.http.wire import Reply, common_headers, respond
from spark_ssp.testing.kinesis.state.subscription import Subscription

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

_log = logging.getLogger(__name__)
_STOP_TIMEOUT_S = 30
_POLL_S = 0.02
"""The time between two looks for the next event of an idle subscription."""
TRANSPORT = "spark_ssp.testing.kinesis.transport"
"""The ASGI extension that contains the connection."""


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
