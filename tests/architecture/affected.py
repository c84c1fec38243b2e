"""Runs the unit tests that the changes of the work tree can break, nearest first, and the rules of
imports.

`python -m tests.architecture.affected [--since COMMIT] [--list]` takes the files that differ from a
commit (`HEAD` by default) and selects each test file that imports one of them, directly or not, or
that names one which is not a module. Of many, the nearest `MOST` are run. Simulations and tests
with servers or Spark are left to `make test`.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.architecture.layers import LINKED, ROOT

_FILE_NAME: Final = re.compile(r"[\w-]+\.\w+")
UNIT: Final = "tests/unit/"
RULES: Final = ("tests/architecture/test_imports.py", "tests/architecture/test_layout.py")
MOST: Final = 16


def _git(*arguments: str) -> list[str]:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def module_name(file: str) -> str:
    parts = list(Path(file).with_suffix("").parts)
    within = ["spark_ssp"] if parts[0] in LINKED else []
    return ".".join(within + (parts[:-1] if parts[-1] == "__init__" else parts))


def used_files(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Return for each Python file the files that it imports or names, as text too."""
    modules = {module_name(file): file for file in sources if file.endswith(".py")}
    other: dict[str, set[str]] = {}
    for file in sources:
        if not file.endswith(".py"):
            other.setdefault(Path(file).name, set()).add(file)
    uses = {
        file: {modules[name] for name in _names(ast.parse(sources[file])) if name in modules}
        | {one for name in _FILE_NAME.findall(sources[file]) for one in other.get(name, ())}
        for file in modules.values()
    }
    for test in uses:
        if test.startswith(UNIT):
            uses[test] |= {file for file in _unnamed(test) if file in uses} - {test}
    return uses


def _unnamed(test: str) -> Iterator[str]:
    """Yield what a unit test may use without an import: the fixtures of its folders, and the module
    of its name, which may be found by name, as commands are."""
    for folder in Path(test).parents:
        if f"{folder}/".startswith(UNIT):
            yield f"{folder}/conftest.py"
    own = test.removeprefix(UNIT).replace("test_", "")
    yield from (own, f"spark_ssp/{own}")


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.Constant(value=str(text)):
                yield from re.findall(r"\w+(?:\.\w+)+", text)


def affected(uses: Mapping[str, set[str]], changed: set[str]) -> list[str]:
    """Return the changed files and those that use them: directly ones before others, and tests of
    a file's name first."""
    found = dict.fromkeys(sorted(changed))
    for target in (waiting := list(found)):
        users = [user for user, used in uses.items() if target in used and user not in found]
        users.sort(key=lambda user: (Path(user).name != f"test_{Path(target).name}", user))
        found.update(dict.fromkeys(users))
        waiting.extend(users)
    return list(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--since", default="HEAD", metavar="COMMIT")
    parser.add_argument("--list", action="store_true", help="only print the selected files")
    options = parser.parse_args()
    new = _git("ls-files", "--others", "--exclude-standard")
    changed = {*_git("diff", "--name-only", options.since), *new}
    files = [file for file in {*_git("ls-files"), *new} if (ROOT / file).is_file()]
    sources = {file: (ROOT / file).read_text("utf-8", "replace") for file in files}
    tests = [
        file
        for file in affected(used_files(sources), changed)
        if file.startswith(UNIT) and Path(file).name.startswith("test_")
    ]
    if options.list:
        sys.stdout.writelines(f"{file}\n" for file in tests)
        return
    print(f"{len(tests)} test files import a change", end="")
    print(f"; the {MOST} nearest are run" if len(tests) > MOST else "")
    command = [sys.executable, "-m", "pytest", "-q", "--exitfirst", *tests[:MOST], *RULES]
    raise SystemExit(subprocess.run(command, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
