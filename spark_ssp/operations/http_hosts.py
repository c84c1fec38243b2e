"""The hosts of HTTP servers, and which requests a server of this machine answers.

A page of another site can resolve its own name to this machine (DNS rebinding), and then read the
answers of a server without a token. Its requests name that site as their host.
"""

from __future__ import annotations

from typing import Final

from spark_ssp.common.options.values import is_loopback

REFUSAL: Final = "the Host header must name this machine: 127.0.0.1, localhost or [::1]\n"
"""The answer to a request for another host, with the status 400."""


def base_url(host: str) -> str:
    """Return the URL of a host without its port."""
    return f"http://{f'[{host}]' if ':' in host else host}"


def is_local(host: str) -> bool:
    """Return whether only this machine can reach a server at `host`."""
    return is_loopback(base_url(host))


def names_this_machine(host_header: str | None) -> bool:
    """Return whether the Host header of a request is any loopback address, or localhost."""
    return is_loopback(f"http://{host_header or ''}")
