"""A Python environment with only a wheel and its declared dependencies."""

from __future__ import annotations

import csv
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


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
