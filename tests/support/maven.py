"""Java servers for tests, by their Maven coordinates and without Maven: PySpark ships Ivy.

What a server consists of is pinned, dependencies included, by a file of SHA-256 checksums in
`tests/servers/`. It is fetched on first use into the checkout's `.cache/`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

from tests.support.servers import installing_into

_ROOT: Final = Path(__file__).resolve().parents[2]
_CACHE: Final = _ROOT / ".cache" / "maven"
_SERVERS: Final = _ROOT / "tests" / "servers"
_PATIENCE_S: Final = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """Maven's coordinates; `checksums` names a file as `sha256sum` writes it."""

    organisation: str
    name: str
    version: str
    checksums: str


def java() -> str:
    """The Java that PySpark would use."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def spark_jar(pattern: str) -> Path:
    """The one jar of PySpark's that matches."""
    (found,) = (Path(pyspark.__file__).parent / "jars").glob(pattern)
    return found


def fetch(artifact: Artifact) -> Path:
    """The folder that holds the artifact and all that it depends on, and nothing else."""
    folder = _CACHE / f"{artifact.name}-{artifact.version}"
    with installing_into(_CACHE):
        if not folder.exists():
            _retrieve(artifact, folder)
    return folder


def _retrieve(artifact: Artifact, folder: Path) -> None:
    fresh = folder.with_suffix(".part")
    shutil.rmtree(fresh, ignore_errors=True)
    command = [java(), "-XX:TieredStopAtLevel=1", "-jar", str(spark_jar("ivy-*.jar"))]
    command += ["-settings", str(_SERVERS / "ivysettings.xml"), "-cache", str(_CACHE / "ivy")]
    command += ["-dependency", artifact.organisation, artifact.name, artifact.version]
    command += ["-confs", "default"]
    command += ["-retrieve", f"{fresh}/[artifact]-[revision](-[classifier]).[ext]"]
    found = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    if found.returncode != 0 or not fresh.exists():
        raise RuntimeError(f"fetching {artifact.name} failed:\n{found.stdout[-4000:]}")
    verify(fresh, artifact.checksums)
    fresh.rename(folder)


def verify(folder: Path, checksums: str, *, pattern: str = "*") -> None:
    """The files that match are those of the file of checksums; RuntimeError otherwise."""
    expected = _read_checksums(checksums)
    actual = {path.name: _checksum(path) for path in sorted(folder.glob(pattern))}
    if actual != expected:
        wrong = sorted(dict(actual.items() ^ expected.items()))
        raise RuntimeError(f"{folder.name}: not what {checksums} says: {wrong}")


def _read_checksums(name: str) -> dict[str, str]:
    lines = (_SERVERS / name).read_text(encoding="ascii").splitlines()
    return {file: checksum for checksum, file in (line.split("  ") for line in lines)}


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
