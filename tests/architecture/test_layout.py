"""The folders: no import cycles, the layers of `layers.py`, a complete map."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.architecture import layers
from tests.architecture.graphs import cycles, folder_imports, module_imports, modules

_MAP: Final = (layers.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAP: Final = _MAP[_MAP.index("\n## Map\n") : _MAP.index("\n## Layers\n")]


def test_a_cycle_would_be_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    found = cycles({node: frozenset(targets) for node, targets in graph.items()})
    assert found == [["a", "b", "c"], ["d", "e"]]


def test_no_import_cycle_among_modules() -> None:
    """Imports inside functions and for type annotations count as well: none is an excuse."""
    assert cycles(module_imports()) == []


def test_no_import_cycle_among_folders() -> None:
    assert cycles(folder_imports()) == []


@pytest.mark.parametrize("package", layers.FOLDERS)
def test_folders_import_what_their_layer_allows(package: str) -> None:
    """Exactly that: an import that is gone leaves the table too."""
    found = {
        folder: {one for one in imported if one.partition(".")[0] == package}
        for folder, imported in folder_imports().items()
        if folder.partition(".")[0] == package
    }
    allowed = {
        _dotted(package, folder): {_dotted(package, one) for one in imported.split()}
        for folder, imported in layers.FOLDERS[package].items()
    }
    assert found == allowed


def _dotted(package: str, folder: str) -> str:
    return package if folder == "." else f"{package}.{folder}"


def test_every_package_with_folders_has_its_layers() -> None:
    nested = {name.partition(".")[0] for name in folder_imports() if "." in name}
    assert sorted(layers.FOLDERS) == sorted(nested)


def test_the_map_lists_every_package() -> None:
    rows = re.findall(r"^\| `([\w/.]+)` \|(?:.*\|){2}$", MAP, re.MULTILINE)
    expected = [
        f"{path.parent}/" if path.name == "__init__.py" else str(path)
        for path in (module.path.relative_to(layers.ROOT) for module in modules().values())
        if path.name == "__init__.py" or len(path.parts) == 1
    ]
    assert sorted(rows) == sorted(expected)


def test_files_that_the_map_names_exist() -> None:
    """The third column of the first table is relative to the first, and so are names after a path
    in the table of tasks."""
    missing = []
    for line in MAP.splitlines():
        folder = ""
        for name in re.findall(r"`([\w/]+(?:/|\.\w+))`", line):
            if name.endswith("/"):
                folder = name
            elif "/" in name:
                folder = f"{name.rpartition('/')[0]}/"
            path = name if "/" in name else f"{folder}{name}"
            if path != "error_translation.py" and not (layers.ROOT / path).exists():
                missing.append(path)
    assert missing == []
