"""Builds the environments of the matrix into `.cache/environments`, with uv."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from spark_ssp.testing.kafka.jars import installing_into
from tests.support.environments.matrix import Entry
from tests.support.servers.cache import CACHE

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
    result = subprocess.run(command, cwd=cwd, env=ours, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")
    return result.stdout
