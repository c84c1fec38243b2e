"""Folders of the tests' servers: that of fetched files, in the checkout, so that `make clean`
removes it, and that of the locks and checksums with which they are fetched."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from spark_ssp.testing.kafka.jars import installing_into

CACHE: Final = Path(__file__).resolve().parents[3] / ".cache"
_SERVERS: Final = Path(__file__).resolve().parents[2] / "servers"


def use() -> None:
    """Have this process, and those that it starts, fetch into it."""
    os.environ["SPARK_SSP_CACHE"] = str(CACHE)


def checksums(name: str) -> Path:
    """A file in `tests/servers/`: of checksums, or of modules."""
    return _SERVERS / name


def install_locked(folder: Path, lock: Path, install: Callable[[], None]) -> None:
    """Have `install` fill the folder, unless it was filled by the same lock file. One process does,
    the others wait."""
    with installing_into(folder):
        done, wanted = folder / f"installed{lock.suffix}", lock.read_bytes()
        if not done.exists() or done.read_bytes() != wanted:
            done.unlink(missing_ok=True)
            install()
            done.write_bytes(wanted)


def run(
    command: Sequence[str],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> str:
    """Return what a program has written to its standard output. Raises RuntimeError with its output
    if it fails."""
    found = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if found.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{found.stdout}{found.stderr}")
    return found.stdout
