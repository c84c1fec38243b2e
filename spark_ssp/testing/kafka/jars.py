"""Java programs by their Maven coordinates and without Maven: PySpark ships Ivy. A file of SHA-256
checksums pins a program and its dependencies. They are fetched once into a cache folder that only
this user can change, and checked again at every start."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_IVY_SETTINGS: Final = Path(__file__).with_name("ivysettings.xml")
_PATIENCE_S: Final = 900
_SHOWN: Final = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """Maven's coordinates; `checksums` is a file as `sha256sum` writes it."""

    organisation: str
    name: str
    version: str
    checksums: Path

    def wanted(self) -> list[str]:
        """Return the arguments for Ivy."""
        return ["-dependency", self.organisation, self.name, self.version, "-confs", "default"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The modules listed in an Ivy file (`modules`), under a name and a version of this project."""

    name: str
    version: str
    modules: Path
    checksums: Path

    def wanted(self) -> list[str]:
        """Return the arguments for Ivy."""
        return ["-ivy", str(self.modules), "-confs", "default"]


def java() -> str:
    """Return the Java that PySpark would use. Raises RuntimeError if there is none."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else "java"
    if shutil.which(program) is None:
        raise RuntimeError(
            f"found no program {program}; expected Java 17 or newer. Next step: install it, or set "
            "JAVA_HOME to its folder"
        )
    return program


def spark_jar(pattern: str) -> Path:
    """The one jar of PySpark's that matches."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise RuntimeError("PySpark is not installed: pip install 'pyspark>=4.0' py4j")
    (found,) = (Path(spec.origin).parent / "jars").glob(pattern)
    return found


def cache_folder() -> Path:
    """`SPARK_SSP_CACHE`, or this project's folder in the user's cache (XDG Base Directory)."""
    ours = os.environ.get("SPARK_SSP_CACHE")
    if ours:
        return Path(ours)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spark-ssp"


def fetch(artifact: Artifact | Bundle, cache: Path | None = None) -> Path:
    """Return the folder that contains exactly the artifact and its dependencies. Raises
    RuntimeError if they cannot be fetched or do not match the checksums."""
    cache = (cache or cache_folder()) / "maven"
    folder = cache / f"{artifact.name}-{artifact.version}"
    # A folder of that name is complete, so no lock is needed to use it.
    make_private(cache)
    if not folder.exists():
        with installing_into(cache):
            if not folder.exists():
                _retrieve(artifact, cache, folder)
    # Checked even if fetched long ago, since these files are about to be run.
    verify(folder, artifact.checksums)
    return folder


def _retrieve(artifact: Artifact | Bundle, cache: Path, folder: Path) -> None:
    fresh = cache / f"{folder.name}.part"
    shutil.rmtree(fresh, ignore_errors=True)
    command = [java(), "-XX:TieredStopAtLevel=1", "-jar", str(spark_jar("ivy-*.jar"))]
    command += ["-settings", str(_IVY_SETTINGS), "-cache", str(cache / "ivy")]
    command += artifact.wanted()
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
        raise RuntimeError(
            f"fetching {artifact.name} failed. Next step: check the connection to Maven Central; "
            "behind a proxy, set JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=… -Dhttps.proxyPort=…'\n"
            f"{found.stdout[-_SHOWN:]}"
        )
    verify(fresh, artifact.checksums)
    fresh.rename(folder)


def verify(folder: Path, checksums: Path, *, pattern: str = "*") -> None:
    """Check that the matching files are those of the file of checksums. RuntimeError otherwise."""
    expected = _read_checksums(checksums)
    actual = {path.name: _checksum(path) for path in sorted(folder.glob(pattern))}
    if actual != expected:
        wrong = sorted(dict(actual.items() ^ expected.items()))
        raise RuntimeError(
            f"{folder}: found other files than {checksums.name} lists: {', '.join(wrong)}; "
            "expected exactly those. Next step: remove the folder, and it is fetched again"
        )


def _read_checksums(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="ascii").splitlines()
    return {file: checksum for checksum, file in (line.split("  ") for line in lines)}


def _checksum(path: Path) -> str | None:
    """Return None for anything but a regular file, such as a link."""
    if not stat.S_ISREG(path.lstat().st_mode):
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_private(folder: Path) -> None:
    """Create the folder unless it exists, and make it private. Raises RuntimeError if it is a link
    or belongs to another user and is therefore not safe to run programs from."""
    folder.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise RuntimeError(
            f"{folder}: found a link or a folder of another user; expected a folder of this user. "
            "Next step: remove it, or set SPARK_SSP_CACHE to another folder"
        )
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        folder.chmod(stat.S_IRWXU)


@contextmanager
def installing_into(folder: Path) -> Iterator[None]:
    """Let one process at a time into this block. Makes the folder."""
    make_private(folder)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(folder / "lock", flags, 0o600), "r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
