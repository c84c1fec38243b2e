"""The embedded Kinesis as AWS's endpoints are: TLS, with HTTP/2 and HTTP/1.1 on one port. It also
has both without TLS."""

from __future__ import annotations

import asyncio
import logging
import ssl
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import h2.config
import h2.connection
import h2.events
import h2.exceptions
from h2.errors import ErrorCodes
from h2.settings import SettingCodes, Settings

from spark_ssp.testing.kinesis.dispatch import KinesisState
from spark_ssp.testing.kinesis.server import LOOPBACK, TRANSPORT, Http1Protocol, HttpServer
from tests.support.kinesis.certificates import write_certificates

if TYPE_CHECKING:
    from collections.abc import Coroutine, MutableSet

_log = logging.getLogger(__name__)
_MAX_STREAMS: Final = 128
_PREFACE: Final = b"PRI * HTTP/2.0"
"""The first bytes of a client that begins HTTP/2 without asking (RFC 9113, 3.4)."""


@dataclass(slots=True, kw_only=True)
class Traffic:
    """Counts of a server's HTTP/2. `sent`: bytes of response bodies; `in_flight`: those of them for
    which the client has not enlarged a stream's window again; `most_in_flight`: its maximum."""

    connections: int = 0
    streams: int = 0
    sent: int = 0
    in_flight: int = 0
    most_in_flight: int = 0


class Http2Kinesis:
    """A context manager: the state of an embedded service at `endpoint_url`, whose certificate is
    of the authority in the file `authority`."""

    def __init__(
        self,
        state: KinesisState,
        *,
        max_streams: int = _MAX_STREAMS,
        hold: int = 0,
        has_tls: bool = True,
    ) -> None:
        """`max_streams`: the number of streams that a connection may have at a time. `hold`: no
        response begins until a connection has this many."""
        self.traffic = Traffic()
        self._folder = tempfile.TemporaryDirectory(prefix="http2-")
        folder = Path(self._folder.name)
        write_certificates(folder, "server")
        self.authority = folder / "ca.pem"
        protocol = either_protocol(self.traffic, max_streams, hold)
        tls = server_tls(folder) if has_tls else None
        self._server = HttpServer(state, port=0, host=LOOPBACK, protocol=protocol, tls=tls)

    @property
    def endpoint_url(self) -> str:
        return self._server.endpoint_url

    def stop(self) -> None:
        """Stop serving, which ends all connections."""
        self._server.stop()

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._folder.cleanup()


def server_tls(folder: Path) -> ssl.SSLContext:
    """Return the settings of a server with the certificate `server.pem` in a folder."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "server.pem")
    tls.set_alpn_protocols(["h2", "http/1.1"])
    return tls


def either_protocol(
    counted: Traffic | None = None, max_streams: int = _MAX_STREAMS, hold: int = 0
) -> type[Http1Protocol]:
    """Return a protocol for uvicorn."""

    class Protocol(_EitherProtocol):
        traffic = counted or Traffic()
        most = max_streams
        least = hold

    return Protocol


class _EitherProtocol(Http1Protocol):
    """HTTP/1.1, unless the client has agreed to HTTP/2, or begins it."""

    traffic: Traffic
    most: int
    least: int

    def connection_made(  # type: ignore[override]
        self, transport: asyncio.Transport
    ) -> None:
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() == "h2":
            self._switch(transport)
        else:
            super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(_PREFACE):
            self.connections.discard(self)
            self._switch(self.transport).data_received(data)
        else:
            super().data_received(data)

    def _switch(self, transport: asyncio.Transport) -> _Http2Connection:
        other = _Http2Connection(
            self.app, self.connections, self.traffic, max_streams=self.most, hold=self.least
        )
        transport.set_protocol(other)
        other.connection_made(transport)
        return other

    def shutdown(self) -> None:
        """End the connection. Called by uvicorn, whose own method would wait for the client to end
        TLS."""
        self.transport.abort()


class _Http2Connection(asyncio.Protocol):
    """A connection: each stream is a call of the ASGI application."""

    def __init__(
        self,
        app: Any,
        connections: MutableSet[Any],
        traffic: Traffic,
        *,
        max_streams: int,
        hold: int,
    ) -> None:
        self._app = app
        self._connections = connections
        self._traffic = traffic
        self._h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding=None)
        )
        self._max_streams = max_streams
        self._hold = hold
        self._streams: dict[int, asyncio.Queue[dict[str, Any]]] = {}
        self._in_flight: dict[int, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._is_full = self._is_lost = False

    # --- Calls of the event loop ------------------------------------------------------------------

    def connection_made(  # type: ignore[override]
        self, transport: asyncio.Transport
    ) -> None:
        self._transport = transport
        self._connections.add(self)
        self._traffic.connections += 1
        limit = {SettingCodes.MAX_CONCURRENT_STREAMS: self._max_streams}
        self._h2.local_settings = Settings(client=False, initial_values=limit)
        self._h2.initiate_connection()
        # h2 would end the connection of a client that exceeds the limit before it knows it.
        self._h2.local_settings = Settings(client=False)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._connections.discard(self)
        for stream in list(self._streams):
            self._end(stream)
        self._wake()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._wake()

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._h2.receive_data(data):
                self._process(event)
        except h2.exceptions.ProtocolError as error:
            _log.warning("a connection is closed: %s", error)
            self._transport.close()
        self._flush()
        self._wake()

    def shutdown(self) -> None:
        """End the connection. Called by uvicorn."""
        self._transport.abort()

    # --- Streams ----------------------------------------------------------------------------------

    def _process(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=int() as stream) if (
                len(self._streams) >= self._max_streams
            ):
                self._h2.reset_stream(stream, ErrorCodes.REFUSED_STREAM)
            case h2.events.RequestReceived(stream_id=int() as stream):
                self._traffic.streams += 1
                self._streams[stream] = asyncio.Queue()
                if len(self._streams) >= self._hold:
                    self._hold = 0
                self._start(self._respond(stream, dict(event.headers or ())))
            case h2.events.DataReceived(stream_id=int() as stream):
                self._h2.acknowledge_received_data(event.flow_controlled_length or 0, stream)
                self._receive(stream, event.data or b"", more=True)
            case h2.events.StreamEnded(stream_id=int() as stream):
                self._receive(stream, b"", more=False)
            case h2.events.StreamReset(stream_id=int() as stream):
                self._end(stream)
            case h2.events.WindowUpdated(stream_id=int() as stream) if stream in self._in_flight:
                self._count(stream, -(event.delta or 0))
            case h2.events.ConnectionTerminated():
                self._transport.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _receive(self, stream: int, body: bytes, *, more: bool) -> None:
        if stream in self._streams:
            message = {"type": "http.request", "body": body, "more_body": more}
            self._streams[stream].put_nowait(message)

    def _end(self, stream: int) -> None:
        if stream in self._streams:
            self._streams.pop(stream).put_nowait({"type": "http.disconnect"})
        self._traffic.in_flight -= self._in_flight.pop(stream, 0)

    def _count(self, stream: int, size: int) -> None:
        """Count bytes of a stream that were sent, or for which its window was enlarged."""
        traffic = self._traffic
        self._in_flight[stream] += size
        traffic.in_flight += size
        traffic.most_in_flight = max(traffic.most_in_flight, traffic.in_flight)

    async def _respond(self, stream: int, headers: dict[bytes, bytes]) -> None:
        scope = {
            "type": "http",
            "http_version": "2",
            "method": headers[b":method"].decode(),
            "scheme": "https",
            "path": headers[b":path"].decode(),
            "headers": [(b"host", headers[b":authority"]), *headers.items()],
            "client": self._transport.get_extra_info("peername"),
            "extensions": {TRANSPORT: {"transport": self._transport}},
        }

        async def send(message: dict[str, Any]) -> None:
            with suppress(h2.exceptions.StreamClosedError):
                await self._send(stream, message)

        self._in_flight[stream] = 0
        while self._hold and not self._is_lost:
            await self._changed.wait()
        if self._is_lost:
            return
        await self._app(scope, self._streams[stream].get, send)
        self._end(stream)

    async def _send(self, stream: int, message: dict[str, Any]) -> None:
        if self._is_lost:
            return
        if message["type"] == "http.response.start":
            headers = [each for each in message["headers"] if each[0] != b"connection"]
            self._h2.send_headers(stream, [(b":status", b"%d" % message["status"]), *headers])
        else:
            await self._send_data(stream, message["body"])
            if not message["more_body"] and not self._is_lost:
                self._h2.end_stream(stream)
        self._flush()

    async def _send_data(self, stream: int, data: bytes) -> None:
        """Send data as the windows allow."""
        start = 0
        while start < len(data) and not self._is_lost:
            window = self._h2.local_flow_control_window(stream)
            size = min(window, self._h2.max_outbound_frame_size, len(data) - start)
            if size <= 0 or self._is_full:
                await self._changed.wait()
                continue
            self._h2.send_data(stream, data[start : start + size])
            self._traffic.sent += size
            self._count(stream, size)
            start += size
            self._flush()

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and not self._is_lost:
            self._transport.write(data)

    def _wake(self) -> None:
        """Wake the streams that wait until they may send."""
        self._changed.set()
        self._changed = asyncio.Event()
