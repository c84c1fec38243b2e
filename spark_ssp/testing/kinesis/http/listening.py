"""Opens the sockets of the services, on 127.0.0.1 unless another address is given."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


def listen(port: int, host: str) -> socket.socket:
    """Return a socket that listens on `port` of `host`, or on any free one for 0. OSError if it is
    taken, or if `host` is no address of this machine, as an empty one, which would be all."""
    if not host.strip():
        raise OSError("an empty host; expected an address of this machine, such as 127.0.0.1")
    # The protocol is set explicitly because asyncio sets TCP_NODELAY only on sockets that have one;
    # without it every small answer waits 40 ms for an acknowledgement.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
    except OSError:
        listening.close()
        raise
    return listening
