"""Folder of the files that the tests fetch: in the checkout, so that `make clean` removes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

CACHE: Final = Path(__file__).resolve().parents[3] / ".cache"


def use() -> None:
    """Have this process, and those that it starts, fetch into it."""
    os.environ["SPARK_SSP_CACHE"] = str(CACHE)
