"""Hosts in separate network namespaces, whose links can be taken down."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from spark_ssp.testing.kafka.broker import LocalServer

_NETWORK_NAMESPACE: Final = 0x40000000  # CLONE_NEWNET
_SUBNET: Final = "10.77.0"
_HERE: Final = "/proc/thread-self/ns/net"


class Network(LocalServer):
    """A context manager: hosts with a link each to a common switch, and no other network. The
    switch is a bridge in a further namespace, so nothing of this machine's own network changes."""

    def __init__(self, *hosts: str) -> None:
        self._addresses = {host: f"{_SUBNET}.{number}" for number, host in enumerate(hosts, 1)}

    def _start(self, resources: ExitStack) -> None:
        switch = self._namespace(resources, "switch")
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        for host, address in self._addresses.items():
            own = self._namespace(resources, host)
            link = ("link", "add", "eth0", "type", "veth")
            _ip("-n", own, *link, "peer", "name", _port(host), "netns", switch)
            _ip("-n", own, "address", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", own, "link", "set", "lo", "up")
            _ip("-n", own, "link", "set", "eth0", "up")
            _ip("-n", switch, "link", "set", _port(host), "master", "switch", "up")

    @property
    def addresses(self) -> dict[str, str]:
        return dict(self._addresses)

    @contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """Move this thread to a host: its sockets, threads and processes of that time are there."""
        with open(_HERE) as outside:
            with open(Path("/run/netns") / _name(host)) as namespace:
                _enter(namespace.fileno())
            try:
                yield
            finally:
                _enter(outside.fileno())

    @contextmanager
    def without_link(self, host: str) -> Iterator[None]:
        """Take the link of a host down until the block ends. Packets of both directions are lost
        without an error, as with an unplugged cable."""
        _ip("-n", _name("switch"), "link", "set", _port(host), "down")
        try:
            yield
        finally:
            _ip("-n", _name("switch"), "link", "set", _port(host), "up")

    @contextmanager
    def without_path(self, one: str, other: str) -> Iterator[None]:
        """Lose all packets between two hosts until the block ends; both reach the others. Each has
        a link-layer address for the other that no host has."""
        pairs = ((one, other), (other, one))
        with ExitStack() as mended:
            for host, peer in pairs:
                neighbour = ("neighbour", "replace", self._addresses[peer], "dev", "eth0")
                _ip(
                    "-n", _name(host), *neighbour, "lladdr", "02:00:00:00:00:01", "nud", "permanent"
                )
                delete = ("neighbour", "delete", self._addresses[peer], "dev", "eth0")
                mended.callback(_ip, "-n", _name(host), *delete)
            yield

    def _namespace(self, resources: ExitStack, host: str) -> str:
        name = _name(host)
        _ip("netns", "add", name)
        resources.callback(_ip, "netns", "delete", name)
        return name


def _name(host: str) -> str:
    """Return the name of a host's namespace, which is unique on this machine."""
    return f"ssp-{os.getpid()}-{host}"


def _port(host: str) -> str:
    """Return the name of the switch's end of a link; `ip` takes short names for other things."""
    return f"to-{host}"


def _ip(*arguments: str) -> None:
    """Run `ip`. Raises AssertionError, with the next step if namespaces cannot be made here."""
    try:
        result = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        problem = result.stderr if result.returncode != 0 else ""
    except FileNotFoundError:
        problem = "the program `ip` is not installed"
    assert not problem, (
        f"ip {' '.join(arguments)}: found {problem.strip()!r}, expected a network namespace of the "
        "test; run `make long` as root on Linux, with the package iproute2 installed"
    )


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _NETWORK_NAMESPACE) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
