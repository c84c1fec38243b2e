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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_ssp.common.errors import printable
from spark_ssp.operations.inspection.access_checks import Finding, Level

_DEFAULT: Final = "python3"
_MODULES: Final = ("spark_ssp", "pyspark_kafka_ssp", "pyspark_kinesis_ssp")
_TIMEOUT_S: Final = 60
_PROGRAM: Final = """
import importlib.util, json, pkgutil, sys
modules = [m.name for m in pkgutil.iter_modules() if m.name.startswith("pyspark_k")]
if importlib.util.find_spec("spark_ssp") is not None:
    modules.append("spark_ssp")
print(json.dumps([".".join(map(str, sys.version_info[:2])), *modules]))
"""


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
    match = re.search(r"^\s*spark\.pyspark\.python[\s=]+(\S+)", defaults, re.MULTILINE)
    if match is not None:
        return Interpreter(program=match[1], setting="spark.pyspark.python")
    if environ.get("PYSPARK_PYTHON"):
        return Interpreter(program=environ["PYSPARK_PYTHON"], setting="PYSPARK_PYTHON")
    return Interpreter(program=_DEFAULT, setting="the path")


def check_interpreters(environ: Mapping[str, str], defaults: str) -> Iterator[Finding]:
    """Yield the findings about the interpreters."""
    lookup, tasks = lookup_interpreter(environ), task_interpreter(environ, defaults)
    found = _asked(lookup.program)
    yield _finding("Python of the JVM", lookup, found)
    if tasks.program == lookup.program:
        return
    of_tasks = _asked(tasks.program)
    yield _finding("Python of tasks", tasks, of_tasks)
    if isinstance(found, list) and isinstance(of_tasks, list) and found[0] != of_tasks[0]:
        yield Finding(
            "Python of tasks",
            Level.PROBLEM,
            f"Python {of_tasks[0]} by {tasks.setting}, and {found[0]} by {lookup.setting}",
            "use one version: Spark refuses two (PYTHON_VERSION_MISMATCH)",
        )


def _finding(check: str, interpreter: Interpreter, found: list[str] | str) -> Finding:
    where = f"{interpreter.program} (by {interpreter.setting})"
    if isinstance(found, str):
        return Finding(check, Level.PROBLEM, f"{where}: {found}", _REMEDY)
    missing = [name for name in _MODULES if name not in found]
    if missing:
        return Finding(
            check,
            Level.PROBLEM,
            f"{where}: no module {missing[0]}",
            f"{_REMEDY}, or install spark-ssp with {interpreter.program} -m pip",
        )
    return Finding(check, Level.OK, where)


_REMEDY: Final = (
    "set PYSPARK_PYTHON to the interpreter that has spark-ssp, and unset PYSPARK_DRIVER_PYTHON, "
    "before Spark starts; see docs/guide/format-not-found.md"
)


def _asked(program: str) -> list[str] | str:
    """Return an interpreter's version and the modules that it finds, or the reason why it gives
    none."""
    path = shutil.which(program)
    if path is None:
        return "not a program on this machine"
    try:
        result = subprocess.run(
            [path, "-c", _PROGRAM],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
        )
        document = json.loads(result.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"did not start ({type(error).__name__})"
    except ValueError:
        last = result.stderr.strip().splitlines()[-1:] or ["no output"]
        return f"no Python interpreter ({printable(last[0][:200])})"
    return [str(one) for one in document] if isinstance(document, list) else "no Python interpreter"


def defaults_file(environ: Mapping[str, str]) -> Path | None:
    """Return the file spark-defaults.conf that this environment names, if it exists."""
    folder = environ.get("SPARK_CONF_DIR")
    if folder is None and "SPARK_HOME" in environ:
        folder = str(Path(environ["SPARK_HOME"]) / "conf")
    file = None if folder is None else Path(folder) / "spark-defaults.conf"
    return file if file is not None and file.is_file() else None
