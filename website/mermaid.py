"""The script that draws diagrams in the browser, from the npm package `@mermaid-js/tiny`, so that
the site needs no other server."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from website.build import ROOT

_PACKAGE: Final = "@mermaid-js/tiny@11.17.2"
_CHECKSUM: Final = Path(__file__).with_name("mermaid.sha256")
_TIMEOUT_S: Final = 300


def add_mermaid(site: Path) -> None:
    """Put the script into a site; npm fetches it on first use. Raises RuntimeError if its checksum
    is not the pinned one."""
    checksum, name = _CHECKSUM.read_text(encoding="ascii").split()
    fetched = ROOT / ".cache" / "mermaid" / checksum / name
    if not fetched.exists():
        _fetch(checksum, fetched)
    shutil.copyfile(fetched, site / "assets" / name)


def _fetch(checksum: str, into: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = ("npm", "pack", "--silent", _PACKAGE)
        subprocess.run(
            command, cwd=folder, stdout=subprocess.DEVNULL, timeout=_TIMEOUT_S, check=True
        )
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as files:
            member = files.extractfile(f"package/dist/{into.name}")
            assert member is not None
            content = member.read()
    found = hashlib.sha256(content).hexdigest()
    if found != checksum:
        raise RuntimeError(f"{_PACKAGE}: found a file with checksum {found}, expected {checksum}")
    into.parent.mkdir(parents=True, exist_ok=True)
    # Another process may do the same; the content is the same as well.
    partial = into.with_suffix(".partial")
    partial.write_bytes(content)
    partial.replace(into)
