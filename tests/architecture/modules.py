"""The modules of the product as syntax trees, with their imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.architecture.layers import LAYERS, LINKED, ROOT, TOP_LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    name: str
    """Dotted, without `spark_ssp.` in front; of a package's `__init__`, the package's name."""
    path: Path
    tree: ast.Module

    @property
    def import_name(self) -> str:
        """The dotted name that imports it."""
        return self.name if self.package in TOP_LEVEL else f"spark_ssp.{self.name}"

    @property
    def package(self) -> str:
        """The key of LAYERS."""
        return package_of(self.name)

    def imported(self) -> frozenset[str]:
        """Return the dotted names of all imports: of modules, and of what is imported from them,
        which may be a module too. Relative imports are banned."""
        return _imported(self)

    def imported_packages(self) -> frozenset[str]:
        """Return the packages of the imported modules: keys of LAYERS, and those of others."""
        return frozenset(package_of(name) for name in self.imported())


@cache
def _imported(module: Module) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found.update(short(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(short(node.module))
            found.update(short(f"{node.module}.{alias.name}") for alias in node.names)
    return frozenset(found)


def short(name: str) -> str:
    """Return the name of a module as in `layers.py`."""
    within = name.removeprefix("spark_ssp.")
    return within if within.partition(".")[0] in LAYERS else name


def package_of(name: str) -> str:
    """Return the package of a module, whose name is as in `layers.py`."""
    return name.partition(".")[0]


@cache
def distributed_modules() -> tuple[Module, ...]:
    """Return all modules of all layers, sorted by name."""
    return tuple(
        Module(name=_dotted(path), path=path, tree=ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted([*_package_files(), *ROOT.glob("pyspark_*.py")])
    )


def _package_files() -> Iterator[Path]:
    for folder in ("spark_ssp", *LINKED):
        yield from (ROOT / folder).rglob("*.py")  # does not follow links


def _dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return short(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
