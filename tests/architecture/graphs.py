"""The imports of the product as a graph of modules, and of folders."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache

from tests.architecture.modules import Module, distributed_modules, short

Graph = Mapping[str, frozenset[str]]


@cache
def modules() -> Mapping[str, Module]:
    return {module.name: module for module in distributed_modules()}


def folder_of(name: str) -> str:
    """Return the package that a module is in; a package is in itself, a top-level module too."""
    is_package = modules()[name].path.name == "__init__.py"
    return name if is_package or "." not in name else name.rpartition(".")[0]


@cache
def module_imports() -> Graph:
    """Return the product's modules that each module imports, anywhere in it: at its top, in a
    function, or for type annotations. The packages above an imported module are not counted."""
    return {
        name: frozenset(_targets(module.tree)) & modules().keys() - {name}
        for name, module in modules().items()
    }


def _targets(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (short(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                submodule = short(f"{node.module}.{alias.name}")
                yield submodule if submodule in modules() else short(node.module)


@cache
def folder_imports() -> Graph:
    graph: dict[str, set[str]] = {folder_of(name): set() for name in modules()}
    for name, imported in module_imports().items():
        graph[folder_of(name)].update(folder_of(one) for one in imported)
    return {folder: frozenset(imported - {folder}) for folder, imported in graph.items()}


def cycles(graph: Graph) -> list[list[str]]:
    """Return each set of nodes that reach each other, sorted (Tarjan's strong components)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = lowest[node] = len(index)
        stack.append(node)
        for neighbour in sorted(graph[node]):
            if neighbour not in index:
                visit(neighbour)
            if neighbour in stack:
                lowest[node] = min(lowest[node], lowest[neighbour])
        if lowest[node] == index[node]:
            position = stack.index(node)
            if len(stack) - position > 1:
                found.append(sorted(stack[position:]))
            del stack[position:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found)
