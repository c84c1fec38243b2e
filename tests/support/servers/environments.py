"""A Python environment that has a wheel, what the wheel declares to need, and nothing else."""

from __future__ import annotations

import csv
import subprocess
import sys
import sysconfig
import venv
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


class Environment:
    """Made in `folder`, which is to be new. Of what the wheel needs it has this environment's
    copies, by links: nothing is fetched, and the versions are those of the lock."""

    def __init__(self, folder: Path, wheel: Path, *, extras: frozenset[str] = frozenset()) -> None:
        venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
        here = Path(sysconfig.get_path("purelib"))
        self.python = folder / "bin" / "python"
        self.packages = folder / here.relative_to(sys.prefix)
        self._uv("install", "--offline", "--no-deps", str(wheel))
        (installed,) = distributions(path=[str(self.packages)])
        _link(_required(installed, extras), self.packages)
        self._uv("check")  # by another's reading of the same metadata, nothing is missing

    def _uv(self, command: str, *arguments: str) -> None:
        uv = [sys.executable, "-m", "uv", "pip", command, "--quiet", "--python", str(self.python)]
        result = subprocess.run([*uv, *arguments], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr

    def names(self) -> set[str]:
        """The distributions in it."""
        return {found.name for found in distributions(path=[str(self.packages)])}


def _required(root: Distribution, extras: frozenset[str]) -> list[Distribution]:
    """What it requires with these extras, and what those require in turn, of this environment."""
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
    """Link what is one distribution's own as a whole, and what is in a folder of several file by
    file."""
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
    """As `RECORD` names them, without commands and what Python makes anew."""
    for file, *_ in csv.reader((of.read_text("RECORD") or "").splitlines()):
        if not file.startswith("../") and "__pycache__" not in file:
            yield file
