"""Opens the sockets of the services, on 127.0.0.1 only."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


def listen(port: int) -> socket.socket:
    """Return a socket that listens on `port`, or on any free one for 0. OSError if it is taken."""
    # The protocol is set explicitly because asyncio sets TCP_NODELAY only on sockets that have one;
    # without it every small answer waits 40 ms for an acknowledgement.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, port))
        listening.listen(1024)
    except OSError:
        listening.close()
        raise
    return listening
