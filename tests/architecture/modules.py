"""The modules of the product as syntax trees, with their imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.architecture.layers import LAYERS, ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    name: str
    """Dotted; of a package's `__init__`, the package's name."""
    path: Path
    tree: ast.Module

    @property
    def package(self) -> str:
        """The top-level package."""
        return self.name.partition(".")[0]

    def imported(self) -> frozenset[str]:
        """Return the dotted names of all imported modules; relative imports are banned."""
        return frozenset(_imported(self.tree))

    def imported_packages(self) -> frozenset[str]:
        """Return the top-level packages of the imported modules."""
        return frozenset(name.partition(".")[0] for name in self.imported())


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


@cache
def distributed_modules() -> tuple[Module, ...]:
    """Return all modules of all layers, sorted by name."""
    return tuple(
        Module(name=_dotted(path), path=path, tree=ast.parse(path.read_text(encoding="utf-8")))
        for layer in sorted(LAYERS)
        for path in sorted([*(ROOT / layer).rglob("*.py"), *ROOT.glob(f"{layer}.py")])
    )


def _dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
