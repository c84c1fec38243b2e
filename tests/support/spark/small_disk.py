"""A small file system in memory, which can run full. Needs Linux and root, to mount it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class SmallDisk:
    """A file system of `kib` KiB at `folder`."""

    def __init__(self, folder: Path, kib: int) -> None:
        self.folder = folder
        self._kib = kib
        self._mount("size")

    @property
    def is_full(self) -> bool:
        """Return whether it has no room for one more file of a batch and its checksum."""
        return shutil.disk_usage(self.folder).free < 16 * 1024

    def grow(self, times: int) -> None:
        self._kib *= times
        self._mount("remount,size")

    def _mount(self, option: str) -> None:
        where = ["tmpfs", str(self.folder)]
        command = ["mount", "-t", "tmpfs", "-o", f"{option}={self._kib}k", *where]
        subprocess.run(command, check=True)


@contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[SmallDisk]:
    """Mount one, until the block ends."""
    folder.mkdir(parents=True)
    disk = SmallDisk(folder, kib)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
