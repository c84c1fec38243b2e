"""`spark-ssp doctor`: Checks of this machine, a query's options, credentials and permissions.

It also starts the Python interpreters that Spark would start from this environment, and looks for
the formats there. Spark's JVM looks for formats, and plans them, with `PYSPARK_DRIVER_PYTHON`, or
else `PYSPARK_PYTHON`, or else `python3` on the path (`PythonUtils.defaultPythonExec`). Tasks run
with `spark.pyspark.python`, or else `PYSPARK_PYTHON`, or else `python3`
(`SparkContext.pythonExec`). The interpreter of a shell or a notebook is often another one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from spark_ssp.common.errors import SspError, printable
from spark_ssp.common.local_processes import check_private, private_folder
from spark_ssp.common.logs import count_of
from spark_ssp.common.options.spec import OptionTable, read_options
from spark_ssp.common.spark.requirement import install_step, pyspark_version
from spark_ssp.common.times import seconds_text
from spark_ssp.kafka_source.options.client_properties import PREFIX
from spark_ssp.kafka_source.options.parse import parse_options as parse_kafka
from spark_ssp.kafka_source.options.values import KAFKA_OPTIONS
from spark_ssp.kafka_source.reading.pool import SLOW_READS, slow_reads
from spark_ssp.kinesis_source.options.parse import parse_at_load
from spark_ssp.kinesis_source.options.values import KINESIS_OPTIONS
from spark_ssp.operations.arguments import (
    Given,
    are_of_kafka,
    aws_options,
    kafka_options,
    options_file,
)
from spark_ssp.operations.cli import FINDING, Environment, Screen, to_document, write_json
from spark_ssp.operations.inspection.access_checks import (
    Finding,
    Level,
    check_kafka,
    check_kinesis,
    findings_of,
)

_OLDEST_JAVA: Final = 17
_TOO_NEW_JAVA: Final = 23
"""For Hadoop 3.4.1, which Spark 4.0 has (HADOOP-19212)."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_MAJOR: Final = re.compile(r"[0-9]+")
_JAVA: Final = re.compile(r'version "(?:1\.)?([0-9]+)')
_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
_JAVA_TIMEOUT_S: Final = 30


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@options_file
@kafka_options
@aws_options
@click.pass_context
def doctor_command(context: click.Context, as_json: bool, aws: Given, kafka: Given) -> None:
    """Check this machine, and, with --options or other options, a query's options and its access.

    With options of the Kafka source, such as subscribe, the checks are those of kafka-ssp.

    Exit code 1 if there is a problem: a query would fail.
    """
    environment: Environment = context.obj
    findings = list(check_machine())
    given = {**aws.options, **kafka.options}
    if are_of_kafka(given):
        aws, kafka = Given(), Given(options=given)
    if aws.options:
        findings += _kinesis(aws.options, environment)
    if kafka.options:
        findings += _kafka(kafka.options)
    if as_json:
        write_json(to_document(findings))
    else:
        _show(Screen(), findings)
    if any(finding.level is Level.PROBLEM for finding in findings):
        context.exit(FINDING)


def _show(screen: Screen, findings: list[Finding]) -> None:
    for finding in findings:
        style = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}
        screen.line(
            f"{finding.level:<8} {finding.check}: {finding.found}", style.get(finding.level, "")
        )
        if finding.remedy:
            screen.line(f"         -> {finding.remedy}")
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    warnings = sum(finding.level is Level.WARNING for finding in findings)
    screen.line(f"{count_of(problems, 'problem')}, {count_of(warnings, 'warning')}")


# --- Options --------------------------------------------------------------------------------------


def _kinesis(options: Mapping[str, str], environment: Environment) -> Iterator[Finding]:
    yield from _without_effect(KINESIS_OPTIONS, options)
    try:
        parsed = parse_at_load(options, pyspark_without_limits=_pyspark_without_limits())
    except SspError as error:
        yield from findings_of("options", error)
        return
    yield Finding("options", Level.OK, "kinesis-ssp accepts them")
    yield from check_kinesis(parsed, environment.now_ms)


def _kafka(options: Mapping[str, str]) -> Iterator[Finding]:
    own = {name: options[name] for name in options if not name.strip().lower().startswith(PREFIX)}
    yield from _without_effect(KAFKA_OPTIONS, own)
    try:
        parsed = parse_kafka(options, pyspark_without_limits=_pyspark_without_limits())
    except SspError as error:
        yield from findings_of("options", error)
        return
    yield Finding("options", Level.OK, "kafka-ssp accepts them")
    yield from check_kafka(parsed)


def _pyspark_without_limits() -> str | None:
    try:
        return _asked_api()
    except ImportError:
        return None  # which `_pyspark` reports


def _asked_api() -> str | None:
    """Return `PYSPARK_WITHOUT_LIMITS`. Raises ImportError if PySpark's data sources cannot be
    imported."""
    from spark_ssp.common.spark.pyspark_api import PYSPARK_WITHOUT_LIMITS

    return PYSPARK_WITHOUT_LIMITS


def _without_effect(table: OptionTable, options: Mapping[str, str]) -> Iterator[Finding]:
    reading = read_options(table, options)
    names = [*(option.name for option in reading.without_effect), *reading.unknown]
    if names:
        yield Finding(
            "options", Level.WARNING, f"without effect: {', '.join(sorted(names))}", "remove them"
        )


# --- This machine ---------------------------------------------------------------------------------


def check_machine() -> Iterator[Finding]:
    """Yield the findings."""
    yield Finding(
        "spark-ssp",
        Level.OK,
        f"{version('spark-ssp')}, Python {'.'.join(map(str, sys.version_info[:3]))}",
    )
    yield _pyspark()
    yield _java(os.environ)
    yield _dependencies()
    yield _kafka_reads()
    yield from _formats()
    file, defaults = _read_defaults(os.environ)
    if defaults is None:
        yield Finding(
            "spark-defaults.conf",
            Level.NOTE,
            f"{file} cannot be read; it may name another interpreter for tasks",
            "let this user read it",
        )
    yield from check_interpreters(os.environ, defaults or "", _required())
    yield from _temporary_files()
    yield _sockets(file, defaults)


def _pyspark() -> Finding:
    found = pyspark_version()
    if found is None:
        return Finding(
            "PySpark",
            Level.PROBLEM,
            "not in this Python environment",
            "on a platform, run the command with the platform's Python; elsewhere "
            + install_step("pyspark"),
        )
    if _is_too_old(found):
        return Finding(
            "PySpark",
            Level.PROBLEM,
            f"{found}, which has no streaming data sources in Python",
            "use PySpark 4.0 or newer; unset SPARK_HOME if it names an older Spark",
        )
    try:
        without_limits = _asked_api()
    except ImportError as error:
        return Finding(
            "PySpark",
            Level.PROBLEM,
            f"{found}, whose data sources in Python cannot be imported ({error})",
            "install what it lacks, or use another build of PySpark",
        )
    if without_limits is not None:
        return Finding(
            "PySpark",
            Level.NOTE,
            f"{found}: limits of a batch need the option trigger, and lag is not in the progress",
            f"see {GUIDE}kinesis-limits.md, or use PySpark 4.2 or newer",
        )
    return Finding("PySpark", Level.OK, found)


def _is_too_old(version: str) -> bool:
    """Return whether a PySpark is known to have no streaming data sources in Python: a vendor may
    write its version in another form."""
    major = _MAJOR.match(version)
    return major is not None and int(major[0]) < OLDEST_PYSPARK


def _java(environ: Mapping[str, str]) -> Finding:
    home = environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    remedy = "install Java 17 or 21, and set JAVA_HOME to it"
    if program is None or not Path(program).exists():
        missing = f"none at JAVA_HOME={home}" if home else "neither JAVA_HOME nor java on the path"
        if _may_have_no_java(environ):
            missing += "; only a driver that starts Spark itself needs one"
            return Finding("Java", Level.NOTE, missing, remedy)
        return Finding("Java", Level.PROBLEM, missing, remedy)
    try:
        result = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("Java", Level.WARNING, f"{program}: {type(error).__name__}", remedy)
    match = _JAVA.search(result.stderr + result.stdout)
    if match is None:
        return Finding("Java", Level.WARNING, f"{program} shows no version", remedy)
    if int(match[1]) < _OLDEST_JAVA:
        return Finding("Java", Level.PROBLEM, f"Java {match[1]} at {program}", remedy)
    if int(match[1]) >= _TOO_NEW_JAVA and (pyspark_version() or "").startswith("4.0."):
        old = f"Java {match[1]}, on which Spark 4.0 does not start: getSubject is not supported"
        return Finding("Java", Level.PROBLEM, old, remedy)
    return Finding("Java", Level.OK, f"Java {match[1]}")


def _may_have_no_java(environ: Mapping[str, str]) -> bool:
    """Return whether this may be a platform, or a client of Spark Connect."""
    if environ.get("SPARK_REMOTE") or find_spec("grpc") is not None:
        return True
    try:
        version("pyspark")
    except PackageNotFoundError:
        return True
    return False


def _dependencies() -> Finding:
    found: list[str] = []
    missing: list[str] = []
    for name in _required():
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return Finding(
            "dependencies",
            Level.PROBLEM,
            f"missing: {', '.join(missing)}",
            f"pip install {' '.join(missing)}",
        )
    return Finding("dependencies", Level.OK, ", ".join(found))


def _required() -> list[str]:
    """Return the names of the packages that spark-ssp requires without extras."""
    found = [_NAME.match(one) for one in requires("spark-ssp") or () if "extra ==" not in one]
    return [match[0] for match in found if match is not None]


def _kafka_reads() -> Finding:
    reason = slow_reads()
    if reason is None:
        return Finding("Kafka reads", Level.OK, "from librdkafka's memory")
    return Finding(
        "Kafka reads",
        Level.WARNING,
        f"{SLOW_READS}: {reason}",
        "upgrade spark-ssp, or install a version of confluent-kafka that it was tested with "
        f"({GUIDE}compatibility.md)",
    )


def _formats() -> Iterator[Finding]:
    for module, name in (
        ("pyspark_kinesis_ssp", "kinesis-ssp"),
        ("pyspark_kafka_ssp", "kafka-ssp"),
    ):
        spec = find_spec(module)
        if spec is None:
            yield Finding(
                f"format {name}",
                Level.PROBLEM,
                f"no module {module} on the path: Spark finds a format by it",
                "install spark-ssp into the Python environment of the driver and of the executors",
            )
        else:
            yield Finding(
                f"format {name}",
                Level.OK,
                f"{spec.origin}; where Spark does not look for it, call spark_ssp.register",
            )


def _temporary_files() -> Iterator[Finding]:
    folder = private_folder()
    parent = tempfile.gettempdir()
    if not os.access(parent, os.W_OK | os.X_OK):
        yield Finding(
            "temporary files",
            Level.PROBLEM,
            f"{parent} cannot be written",
            "set TMPDIR to a folder that this user may write",
        )
        return
    try:
        check_private(folder)
    except FileNotFoundError:
        yield Finding("temporary files", Level.OK, f"{folder} will be created when needed")
    except SspError as error:
        yield from findings_of("temporary files", error)
    else:
        yield Finding("temporary files", Level.OK, str(folder))


def _sockets(file: Path | None, text: str | None) -> Finding:
    """Check the sockets between Spark's JVM and its Python processes. `text`: of the file
    spark-defaults.conf, None if it cannot be read."""
    check = "reader sockets"
    match = re.search(rf"^\s*{re.escape(_SOCKETS)}[\s=]+(\S+)", text or "", re.MULTILINE)
    if match is not None and match[1].lower() == "true":
        return Finding(check, Level.OK, f"{_SOCKETS}=true in {file}")
    where = "no spark-defaults.conf was found" if file is None else f"not in {file}"
    if text is None:
        where = f"{file} cannot be read"
    return Finding(
        check,
        Level.NOTE,
        f"{_SOCKETS}: {where}; a session may set it",
        f"set {_SOCKETS}=true, with a private spark.python.unix.domain.socket.dir: planning "
        f"and reading become faster ({GUIDE}performance.md)",
    )


# --- The interpreters that Spark would start -----------------------------------------------------


OLDEST_PYSPARK: Final = 4
_DEFAULT_PYTHON: Final = "python3"
_MODULES: Final = ("spark_ssp", "pyspark_kafka_ssp", "pyspark_kinesis_ssp")
_PYTHON_TIMEOUT_S: Final = 60
_SLOW: Final = f"no answer within {seconds_text(_PYTHON_TIMEOUT_S)}"
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
major = (found["pyspark"] or "").partition(".")[0]
if found["pyspark"] and not (major.isdecimal() and int(major) < 4):
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
    return Interpreter(program=_DEFAULT_PYTHON, setting="the path")


def task_interpreter(environ: Mapping[str, str], defaults: str) -> Interpreter:
    """Return the interpreter of tasks. `defaults`: the text of spark-defaults.conf."""
    found = _SETTING.findall(defaults)
    if found:
        return Interpreter(program=found[-1], setting="spark.pyspark.python")
    if environ.get("PYSPARK_PYTHON"):
        return Interpreter(program=environ["PYSPARK_PYTHON"], setting="PYSPARK_PYTHON")
    return Interpreter(program=_DEFAULT_PYTHON, setting="the path")


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
    if _is_too_old(found.pyspark or ""):
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
            timeout=_PYTHON_TIMEOUT_S,
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


def _read_defaults(environ: Mapping[str, str]) -> tuple[Path | None, str | None]:
    """Return the file spark-defaults.conf that this environment names, None if it does not exist,
    and its text, None if it cannot be read."""
    folder = environ.get("SPARK_CONF_DIR")
    if folder is None and "SPARK_HOME" in environ:
        folder = str(Path(environ["SPARK_HOME"]) / "conf")
    if folder is None:
        return None, ""
    file = Path(folder) / "spark-defaults.conf"
    try:
        return file, file.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None, ""
    except OSError:
        return file, None
