"""Where the checksums of the tests' Java servers are; `local_kafka.jars` fetches by them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_SERVERS: Final = Path(__file__).resolve().parents[2] / "servers"


def checksums(name: str) -> Path:
    """A file in `tests/servers/`: of checksums, or of modules."""
    return _SERVERS / name
