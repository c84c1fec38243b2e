"""Folder of the checksums of the tests' Java servers, which `testing/kafka/jars.py` fetches."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_SERVERS: Final = Path(__file__).resolve().parents[2] / "servers"


def checksums(name: str) -> Path:
    """A file in `tests/servers/`: of checksums, or of modules."""
    return _SERVERS / name
