"""A link to a server of this machine, slow in one direction: what clients send.

All connections share its rate, as the connections of a machine share an uplink. Its receive buffers
are small, so that what it has not passed on yet remains in the buffers of the clients' kernel.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from types import TracebackType
from typing import Final, Self

_BUFFER: Final = 8 << 10
_PART: Final = 4 << 10
_BURST_S: Final = 0.02
_LOOK_S: Final = 0.05


class SlowLink:
    """A TCP proxy on 127.0.0.1 that passes on `rate` bytes per second to a server's port."""

    def __init__(self, port: int, rate: float) -> None:
        self.rate = rate
        """May be changed at any time; with 0, nothing more passes."""
        self.passed = 0
        """The number of bytes that clients have sent."""
        self._server = ("127.0.0.1", port)
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(128)
        self._peers: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._selector = selectors.DefaultSelector()
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slow-link", daemon=True)

    @property
    def url(self) -> str:
        """The endpoint for clients."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._is_ended.set()
        self._thread.join()
        for each in [*self._peers, self._listener]:
            each.close()
        self._selector.close()

    def _run(self) -> None:
        tokens, last = 0.0, time.monotonic()
        while not self._is_ended.is_set():
            ready = [key.fileobj for key, _ in self._selector.select(_LOOK_S)]
            now, rate = time.monotonic(), self.rate
            tokens = min(tokens + (now - last) * rate, _PART + _BURST_S * rate) if rate else 0.0
            last = now
            for each in ready:
                if not isinstance(each, socket.socket):
                    raise AssertionError("a file that is no socket")
                if each is self._listener:
                    self._accept()
                elif each not in self._clients:
                    self._pass_on(each, 1 << 16)
                elif tokens > 0:
                    tokens -= self._pass_on(each, _PART)
            if tokens <= 0:
                self._is_ended.wait(min(_LOOK_S, (_PART - tokens) / rate) if rate else _LOOK_S)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(self._server)
        self._clients.add(client)
        self._peers |= {client: server, server: client}
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(each, selectors.EVENT_READ)

    def _pass_on(self, source: socket.socket, most: int) -> int:
        """Pass on some bytes, or the end of a connection; return their number."""
        peer = self._peers.get(source)
        if peer is None:  # closed in this round
            return 0
        try:
            data = source.recv(most)
            peer.sendall(data)
        except OSError:
            data = b""
        if not data:
            for each in (source, peer):
                self._selector.unregister(each)
                del self._peers[each]
                self._clients.discard(each)
                each.close()
        elif source in self._clients:
            self.passed += len(data)
        return len(data)
