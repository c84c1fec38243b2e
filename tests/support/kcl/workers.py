"""Workers that share a lease table: child processes, and the records they have read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple, Protocol


class Read(NamedTuple):
    """A record as a worker read it. `at`: seconds since the epoch, when it was written down."""

    worker: str
    at: float
    shard: str
    sequence: str
    sub: int
    key: str
    data: str


class Worker(Protocol):
    """One worker, running or ended."""

    @property
    def name(self) -> str:
        """Its id in the lease table."""

    @property
    def failed(self) -> bool:
        """Return whether it has ended without being stopped or killed."""

    @property
    def log(self) -> str:
        """Return its output so far."""

    def reads(self) -> list[Read]:
        """All that it has read so far, as it wrote it down."""

    def stop(self) -> None:
        """Stop it as its users would, and wait for its end."""

    def kill(self) -> None:
        """`kill -9` for all of its processes at once, if it lives."""


def reads_in(path: Path) -> list[Read]:
    """The lines of a file. One that is not complete is being written, or its writer was killed."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [Read(**json.loads(line)) for line in lines]
