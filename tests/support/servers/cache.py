"""Folders of the tests' servers: that of fetched files, in the checkout, so that `make clean`
removes it, and that of the checksums, with which `testing/kafka/jars.py` fetches them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

CACHE: Final = Path(__file__).resolve().parents[3] / ".cache"
_SERVERS: Final = Path(__file__).resolve().parents[2] / "servers"


def use() -> None:
    """Have this process, and those that it starts, fetch into it."""
    os.environ["SPARK_SSP_CACHE"] = str(CACHE)


def checksums(name: str) -> Path:
    """A file in `tests/servers/`: of checksums, or of modules."""
    return _SERVERS / name
