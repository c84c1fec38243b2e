"""The Python interpreters that Spark would start from this environment, and the formats they find.

Spark's JVM looks for formats, and plans them, with `PYSPARK_DRIVER_PYTHON`, or else
`PYSPARK_PYTHON`, or else `python3` on the path (`PythonUtils.defaultPythonExec`). Tasks run with
`spark.pyspark.python`, or else `PYSPARK_PYTHON`, or else `python3` (`SparkContext.pythonExec`). The
interpreter of a shell or a notebook is often another one.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_ssp.common.errors import printable
from spark_ssp.common.times import seconds_text
from spark_ssp.operations.inspection.access_checks import Finding, Level

OLDEST_PYSPARK: Final = 4
_DEFAULT: Final = "python3"
_MODULES: Final = ("spark_ssp", "pyspark_kafka_ssp", "pyspark_kinesis_ssp")
_TIMEOUT_S: Final = 60
_SLOW: Final = f"no answer within {seconds_text(_TIMEOUT_S)}"
GUIDE: Final = "https://github.com/spark-ssp/spark-ssp/blob/main/docs/guide/"
"""The address of the guide, which an installed package does not have."""
_PROGRAM: Final = """
import os, sys
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # The modules may print.
import importlib, importlib.metadata, importlib.util, json, pkgutil
found = {"version": ".".join(map(str, sys.version_info[:2])), "missing": [], "failing": None}
names = [m.name for m in pkgutil.iter_modules() if m.name.startswith("pyspark_")]
found["modules"] = [*names, *(["spark_ssp"] if importlib.util.find_spec("spark_ssp") else [])]
for name in sys.argv[1:]:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found["missing"].append(name)
try:
    import pyspark
    found["pyspark"] = pyspark.__version__
except Exception:
    found["pyspark"] = None
if found["pyspark"] and int(found["pyspark"].partition(".")[0]) >= 4:
    for name in ("pyspark_kafka_ssp", "pyspark_kinesis_ssp"):
        try:
            importlib.import_module(name)
        except Exception as error:
            found["failing"] = [name, type(error).__name__]
print(json.dumps(found), file=answer, flush=True)
"""
"""Prints what the interpreter has, and whether it imports the formats. Spark's lookup also imports
all other modules named `pyspark_...`: they are not run here, since they may be jobs."""


_SETTING: Final = re.compile(
    r"^[ \t]*spark\.pyspark\.python[ \t]*[=: \t][ \t]*([^\s=:]\S*)", re.MULTILINE
)
"""A line of Java properties that is not empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A program, and the setting that names it."""

    program: str
    setting: str


def lookup_interpreter(environ: Mapping[str, str]) -> Interpreter:
    """Return the interpreter with which the JVM looks for formats."""
    for name in ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"):
        if environ.get(name):
            return Interpreter(program=environ[name], setting=name)
    return Interpreter(program=_DEFAULT, setting="the path")


def task_interpreter(environ: Mapping[str, str], defaults: str) -> Interpreter:
    """Return the interpreter of tasks. `defaults`: the text of spark-defaults.conf."""
    found = _SETTING.findall(defaults)
    if found:
        return Interpreter(program=found[-1], setting="spark.pyspark.python")
    if environ.get("PYSPARK_PYTHON"):
        return Interpreter(program=environ["PYSPARK_PYTHON"], setting="PYSPARK_PYTHON")
    return Interpreter(program=_DEFAULT, setting="the path")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """The answer of an interpreter: the modules that it finds, the required packages that it does
    not have, its PySpark, and a module whose import fails, with the kind of the error."""

    version: str
    modules: Sequence[str]
    missing: Sequence[str]
    pyspark: str | None
    failing: tuple[str, str] | None


def check_interpreters(
    environ: Mapping[str, str], defaults: str, packages: Sequence[str]
) -> Iterator[Finding]:
    """Yield the findings about the interpreters. `packages`: those that spark-ssp requires."""
    lookup, tasks = lookup_interpreter(environ), task_interpreter(environ, defaults)
    found = _asked(lookup.program, packages)
    yield _finding("Python of the JVM", lookup, found)
    if isinstance(found, _Answer):
        yield from _of_lookup(lookup, found)
    if tasks.program == lookup.program:
        return
    of_tasks = _asked(tasks.program, packages)
    yield _finding("Python of tasks", tasks, of_tasks)
    if isinstance(found, str) or isinstance(of_tasks, str) or found.version == of_tasks.version:
        return
    yield Finding(
        "Python of tasks",
        Level.PROBLEM,
        f"Python {of_tasks.version} by {tasks.setting}, and {found.version} by {lookup.setting}",
        "use one version: Spark refuses two (PYTHON_VERSION_MISMATCH)",
    )


def _of_lookup(lookup: Interpreter, found: _Answer) -> Iterator[Finding]:
    """Yield the findings about modules that the JVM may find or not."""
    if found.pyspark is not None and int(found.pyspark.partition(".")[0]) < OLDEST_PYSPARK:
        yield Finding(
            "Python of the JVM",
            Level.WARNING,
            f"{lookup.program} has PySpark {found.pyspark}, which has no streaming data sources in "
            "Python",
            f"use PySpark {OLDEST_PYSPARK}.0 or newer, unless Spark has its own",
        )
    others = [name for name in found.modules if name not in _MODULES]
    if others:
        yield Finding(
            "Python of the JVM",
            Level.NOTE,
            f"Spark also imports {', '.join(others)}",
            f"if a query does not find the format: it finds none if one of these fails; {_SEE}",
        )


def _finding(check: str, interpreter: Interpreter, found: _Answer | str) -> Finding:
    where = f"{interpreter.program} (by {interpreter.setting})"
    if found == _SLOW:
        again = "run this again: the machine is busy, or the interpreter hangs"
        return Finding(check, Level.WARNING, f"{where}: {_SLOW}", again)
    problem, remedy = _problem(found, interpreter)
    if problem is not None:
        return Finding(check, Level.PROBLEM, f"{where}: {problem}", remedy)
    return Finding(check, Level.OK, where)


def _problem(found: _Answer | str, interpreter: Interpreter) -> tuple[str | None, str]:
    """Return the reason why Spark would not find the formats with it, or None; and the remedy."""
    other = f"{_REMEDY}, or install spark-ssp with {interpreter.program} -m pip"
    if isinstance(found, str):
        return found, _REMEDY
    absent = [name for name in _MODULES if name not in found.modules]
    if absent:
        return f"no module {absent[0]}", other
    if found.missing:
        # In a checkout, every interpreter finds the modules.
        return f"no package {', '.join(found.missing)}", other
    if found.failing is not None:
        module, error = found.failing
        return f"an import of {module} that ends in {error}", other
    return None, ""


_SEE: Final = f"see {GUIDE}format-not-found.md"
_REMEDY: Final = (
    "set PYSPARK_PYTHON to the interpreter that has spark-ssp, and unset PYSPARK_DRIVER_PYTHON, "
    f"before Spark starts; {_SEE}"
)


def _asked(program: str, packages: Sequence[str]) -> _Answer | str:
    """Return the answer of an interpreter, or the reason why it gives none."""
    path = shutil.which(program)
    if path is None:
        return "not a program on this machine"
    try:
        result = subprocess.run(
            [path, "-c", _PROGRAM, *packages],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return _SLOW
    except OSError as error:
        return f"did not start ({type(error).__name__})"
    try:
        document = json.loads(result.stdout)
        failing = document.pop("failing")
        return _Answer(**document, failing=None if failing is None else tuple(failing))
    except (ValueError, TypeError, AttributeError, KeyError):
        last = result.stderr.strip().splitlines()[-1:] or ["no output"]
        return f"no Python interpreter ({printable(last[0][:200])})"


def defaults_file(environ: Mapping[str, str]) -> Path | None:
    """Return the file spark-defaults.conf that this environment names, if it exists."""
    folder = environ.get("SPARK_CONF_DIR")
    if folder is None and "SPARK_HOME" in environ:
        folder = str(Path(environ["SPARK_HOME"]) / "conf")
    file = None if folder is None else Path(folder) / "spark-defaults.conf"
    return file if file is not None and file.is_file() else None
