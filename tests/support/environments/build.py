"""Python environments: those of the matrix, built into `.cache/environments` with uv, and one with
only a wheel and its declared dependencies."""

from __future__ import annotations

import csv
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spark_ssp.testing.kafka.jars import installing_into
from tests.support.environments.matrix import Entry
from tests.support.servers.cache import CACHE, run

_ROOT: Final = Path(__file__).resolve().parents[3]
_PROJECT: Final = _ROOT / "pyproject.toml"
_LOCK: Final = _ROOT / "requirements" / "dev.txt"
_FOLDER: Final = CACHE / "environments"

EXTRAS: Final = ("local", "demo", "metrics")
"""Those whose packages the scenarios import."""

# The packages of Spark Connect require a newer protobuf than the lowest.
_MORE_EXTRAS: Final = ("connect",)

# PySpark's distribution is a source distribution of 430 MB, mostly jars. To compress them into a
# wheel only to unpack it again would triple the time.
_STORED: Final = "pyspark:--build-option=bdist_wheel --compression=stored"


def build_wheel(folder: Path) -> Path:
    """Build the project's wheel into an empty folder."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    _run(command, cwd=_ROOT)
    (built,) = folder.iterdir()
    return built


def environment(entry: Entry, wheel: Path) -> Path:
    """Return the Python of the environment, which is built unless that was done for the same wheel,
    lock and project. One process builds it, the others wait. Raises RuntimeError if a command
    fails, or if the installation of the wheel has changed PySpark."""
    folder = _FOLDER / entry.name
    wanted = _digest(entry, wheel)
    ready = folder / "digest"
    python = folder / "venv" / "bin" / "python"
    with installing_into(folder):
        if not ready.exists() or ready.read_text(encoding="ascii") != wanted:
            ready.unlink(missing_ok=True)
            shutil.rmtree(folder / "venv", ignore_errors=True)
            _build(entry, wheel, folder, python)
            ready.write_text(wanted, encoding="ascii")
    return python


def _digest(entry: Entry, wheel: Path) -> str:
    digest = hashlib.sha256(repr((entry, EXTRAS, sys.version)).encode())
    for file in (wheel, _LOCK, _PROJECT, Path(__file__)):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _build(entry: Entry, wheel: Path, folder: Path, python: Path) -> None:
    _uv("venv", "--python", interpreter(entry.python), str(folder / "venv"))
    install = ("pip", "install", "--python", str(python))
    platform = folder / "platform.txt"
    platform.write_text(f"{entry.pyspark.requirement}\n", encoding="ascii")
    _uv(*install, "--config-settings-package", _STORED, "--requirements", str(platform))
    before = _installed(python)

    locked = folder / "locked.txt"
    extras = (*EXTRAS, *(() if entry.is_lowest else _MORE_EXTRAS)) if entry.has_tests else ()
    if entry.is_lowest:
        # The dependencies of a wheel are not direct ones to uv, those of a project are.
        asked = [argument for extra in extras for argument in ("--extra", extra)]
        _uv(*install, "--resolution", "lowest-direct", *asked, "--requirements", str(_PROJECT))
        _uv(*install, "--no-deps", str(wheel))
    else:
        locked.write_text(_locked_without(set(before)), encoding="utf-8")
        asked_for = f"spark-ssp[{','.join(extras)}] @ {wheel.as_uri()}"
        _uv(*install, "--constraints", str(locked), asked_for)
    after = _installed(python)
    if any(after[name] != version for name, version in before.items()):
        raise RuntimeError(f"found {after}; expected the platform's packages {before} unchanged")

    if entry.has_tests:
        # Tools of the lock may require newer dependencies than the lowest.
        tools = "" if entry.is_lowest else _locked_without(set(after))
        pins = "".join(f"{name}=={version}\n" for name, version in after.items())
        locked.write_text(pins + tools, encoding="utf-8")
        _uv(*install, "--constraints", str(locked), "--group", f"{_PROJECT}:dev")
    _uv("pip", "check", "--python", str(python))
    # Where the index sends no cache headers, uv keeps 1.4 GB of PySpark for each time it was built.
    _uv("cache", "prune", "--quiet")


def _installed(python: Path) -> dict[str, str]:
    """Return the versions of the distributions, by name."""
    lines = _uv("pip", "freeze", "--python", str(python)).splitlines()
    return dict(line.split("==", 1) for line in lines if "==" in line)


def _locked_without(names: set[str]) -> str:
    """Return the lock without these distributions."""
    entries = re.split(r"(?m)^(?=[a-z0-9])", _LOCK.read_text(encoding="utf-8"))
    return "".join(each for each in entries if each.partition("==")[0] not in names)


def interpreter(version: str | None) -> str:
    """Return a Python of this version (3.12), from PATH or installed by uv. None: this one. Raises
    RuntimeError if there is none."""
    if version is None:
        return sys.executable
    for folder in os.get_exec_path():
        found = Path(folder) / f"python{version}"
        if found.exists() and _reports(found, version):
            return str(found)
    try:
        return _uv("python", "find", "--managed-python", "--no-python-downloads", version).strip()
    except RuntimeError as error:
        raise RuntimeError(
            f"Python {version}: found none on PATH; expected python{version}. Next step: install "
            f"it and put it on PATH, or run `.venv/bin/uv python install {version}`"
        ) from error


def _reports(python: Path, version: str) -> bool:
    """Return whether the program starts and is of the version. Version managers put programs on
    PATH that do neither."""
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    found = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    return found.stdout.strip() == version


def _uv(*arguments: str) -> str:
    return _run([sys.executable, "-m", "uv", *arguments], cwd=_FOLDER)


def _run(command: list[str], *, cwd: Path) -> str:
    # Python's path is that of this environment, not of the other one.
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return run(command, cwd=cwd, env=ours)


class Environment:
    """An environment in `folder`, which must not exist. The dependencies are links to this
    environment's copies: nothing is fetched, and the versions are those of the lock. `wheel` None
    is the distribution that is installed here, by its wheel."""

    def __init__(
        self, folder: Path, wheel: Path | None, *, extras: frozenset[str] = frozenset()
    ) -> None:
        self.folder = folder
        uv = [sys.executable, "-m", "uv", "venv", "--quiet", "--relocatable", "--offline"]
        subprocess.run([*uv, "--python", sys.executable, str(folder)], check=True)
        here = Path(sysconfig.get_path("purelib"))
        self.python = folder / "bin" / "python"
        self.packages = folder / here.relative_to(sys.prefix)
        if wheel is None:
            _link([distribution("spark-ssp")], self.packages)
        else:
            self._uv("install", "--offline", "--no-deps", str(wheel))
        (installed,) = distributions(path=[str(self.packages)])
        _link(required(installed, extras), self.packages)
        self._uv("check")  # by another's reading of the same metadata, nothing is missing

    def _uv(self, command: str, *arguments: str) -> None:
        uv = [sys.executable, "-m", "uv", "pip", command, "--quiet", "--python", str(self.python)]
        result = subprocess.run([*uv, *arguments], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr

    def names(self) -> set[str]:
        """The distributions in it."""
        return {found.name for found in distributions(path=[str(self.packages)])}


def required(root: Distribution, extras: frozenset[str]) -> list[Distribution]:
    """Return the transitive requirements of `root` with these extras, among the distributions of
    this environment."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(root, extras)]
    while waiting:
        dependent, asked = waiting.pop()
        for line in dependent.requires or []:
            need = Requirement(line)
            name = canonicalize_name(need.name)
            key = (name, frozenset(need.extras))
            if key in seen or not _applies(need, asked):
                continue
            seen.add(key)
            found[name] = distribution(name)
            waiting.append((found[name], frozenset(need.extras)))
    return [found[name] for name in sorted(found)]


def _applies(need: Requirement, extras: frozenset[str]) -> bool:
    return need.marker is None or any(
        need.marker.evaluate({"extra": extra}) for extra in sorted(extras) or [""]
    )


def _link(wanted: Iterable[Distribution], packages: Path) -> None:
    """Link the top-level entries of one distribution as a whole, and those shared by several file
    by file."""
    owners = Counter(
        top for each in distributions() for top in {Path(file).parts[0] for file in _files(each)}
    )
    for each in wanted:
        tops = {file: Path(file).parts[0] for file in _files(each)}
        whole = {top for top in tops.values() if owners[top] == 1 and not _is_metadata(top)}
        for name in sorted({top if top in whole else file for file, top in tops.items()}):
            link = packages / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path(str(each.locate_file(name))))


def _is_metadata(top: str) -> bool:
    """uv sees no metadata in a folder that is a link."""
    return top.endswith(".dist-info")


def _files(of: Distribution) -> Iterator[str]:
    """Yield the files listed in `RECORD`, without commands and files that Python generates."""
    for file, *_ in csv.reader((of.read_text("RECORD") or "").splitlines()):
        if not file.startswith("../") and "__pycache__" not in file:
            yield file
