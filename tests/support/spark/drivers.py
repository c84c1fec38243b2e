"""Drivers in separate processes, which can be killed together with their JVM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

import psutil
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, SparkSession

from tests.support.kinesis.fan_out_mode import FAN_OUT_EVERYWHERE, python_path
from tests.support.kinesis.feeds import Record

_ROOT = Path(__file__).resolve().parents[3]
_PROGRAM = _ROOT / "tests" / "spark" / "programs" / "copy_streams.py"
_DEADLINE_S = 540
_NO_SINKS: Final[Mapping[int, Mapping[str, str]]] = MappingProxyType({})

# For every Spark that a test starts. The AWS configuration reaches no service: a test sets its
# endpoint in an option.
ENVIRONMENT: Final = {
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    "SPARK_CONF_DIR": str(_ROOT / "tests" / "spark" / "conf"),
    "SPARK_LOCAL_IP": "127.0.0.1",
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    **(python_path() if FAN_OUT_EVERYWHERE else {}),
}

FREE_CONNECT_PORT: Final = {"SPARK_TESTING": "1"}
"""Otherwise PySpark starts every local server of Spark Connect on the same port."""


def spark_home(folder: Path, package: Path = Path(pyspark.__file__).parent) -> Path:
    """The Spark of this Python's PySpark, or of another one's package, in `folder`, without the zip
    that holds PySpark once more. Spark starts a Python process for each source of a query, and
    more: out of a zip, each would compile all that it imports, for a second."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars"):
        if not (folder / name).exists():
            (folder / name).symlink_to(package / name)
    return folder


# All of Spark's log from INFO on; its shell, which PySpark passes for, would suppress most of it.
_LOG_SETTINGS = """
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c: %m%n%ex
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = info
"""


class Driver:
    """A process of the program `tests/spark/programs/copy_streams.py`, or of another one with the
    same kind of input, and its output. `folder` is for its files. With `log_everything`, Spark logs
    from INFO on. `environment` sets variables; None takes one away."""

    def __init__(
        self,
        folder: Path,
        queries: Sequence[Mapping[str, str]],
        *,
        sources: Sequence[str] = ("kinesis-ssp",),
        session: str = "local[2]",
        trigger: str = "available now",
        log_everything: bool = False,
        environment: Mapping[str, str | None] | None = None,
        python: Path | None = None,
        program: Path = _PROGRAM,
        settings: Mapping[str, str] | None = None,
        hold: Path | None = None,
        sinks: Mapping[int, Mapping[str, str]] = _NO_SINKS,
    ) -> None:
        """Each of `queries` is a set of options; the n-th has its checkpoint in `checkpoint-n` and
        writes to `output-n` in `folder`. `sources` are their formats, or the one of all.

        `python` is one that has the source installed; this one finds it in the checkout.
        `settings` are Spark's. `hold` is a file: see the program. `sinks` are the options of sinks
        of the sources' formats, by the number of the query; the others write to files.
        """
        if len(sources) == 1:
            sources = [sources[0]] * len(queries)
        folder.mkdir(exist_ok=True)
        (folder / "log4j2.properties").write_text(_LOG_SETTINGS)
        self._folder = folder
        self._program = program
        self._task = {
            "session": session,
            "trigger": trigger,
            "settings": dict(settings or {}),
            "log_settings": str(folder / "log4j2.properties") if log_everything else None,
            "queries": [
                {
                    "source": source,
                    "options": dict(options),
                    "checkpoint": str(folder / f"checkpoint-{number}"),
                    "output": str(folder / f"output-{number}"),
                    "sink": dict(sinks[number]) if number in sinks else None,
                    "hold": None if hold is None else str(hold),
                }
                for number, (source, options) in enumerate(zip(sources, queries, strict=True))
            ],
        }
        self._python = sys.executable if python is None else str(python)
        wanted: dict[str, str | None] = {
            **ENVIRONMENT,
            "PYSPARK_PYTHON": self._python,
            "PYSPARK_DRIVER_PYTHON": self._python,
            **(python_path(_ROOT) if python is None else {"PYTHONPATH": None}),
            "SPARK_HOME": str(spark_home(folder / "spark-home")) if python is None else None,
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            **(FREE_CONNECT_PORT if session == "connect" else {}),
            **(environment or {}),
        }
        self._environment = {
            name: value for name, value in (os.environ | wanted).items() if value is not None
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [self._python, str(self._program)],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                start_new_session=True,  # a process group for the driver and its JVM
            )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(self._task).encode())
        self._process.stdin.close()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def _out(self) -> Path:
        return self._folder / "stdout"

    @property
    def _err(self) -> Path:
        return self._folder / "stderr"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        assert self._process is not None
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """All that it wrote to standard error."""
        return self._err.read_text(errors="replace")

    @property
    def output(self) -> str:
        """All that it wrote to standard output."""
        return self._out.read_text(errors="replace")

    def results(self) -> list[dict[str, Any]]:
        """Wait for its end; return its report on each query."""
        assert self._process is not None
        status = self._process.wait(timeout=_DEADLINE_S)
        assert status == 0, f"the driver ended with {status}:\n{self.log[-4000:]}"
        return [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]

    def processes(self, part: str = "") -> list[psutil.Process]:
        """Return its processes with a part of the command, by default all, also itself."""
        leader = psutil.Process(self.pid)
        found = [leader, *leader.children(recursive=True)]
        return [one for one in found if part in command_of(one)] if part else found

    def stop_gracefully(self) -> None:
        """Stop the queries that run as fast as possible, each after its batch, and wait."""
        (self._folder / "stop").touch()
        (result,) = self.results()
        (self._folder / "stop").unlink()
        assert result["failure"] is None, result["failure"]

    def kill(self) -> set[str]:
        """`kill -9` for Python and its JVM at once; return the names of the killed programs.
        Spark's Python workers are in separate groups and end with their JVM."""
        assert self._process is not None
        if not self.alive:
            return set()
        group = dict(_group(self._process.pid))
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        psutil.wait_procs(list(group))
        return set(group.values())


def kill_workers(driver: Driver) -> int:
    """`kill -9` for the Python processes that run the tasks; return their number. Spark starts
    others for the tasks that it runs again."""
    workers = driver.processes("pyspark.daemon")
    send(signal.SIGKILL, workers)
    return len(workers)


def send(number: int, processes: Iterable[psutil.Process]) -> None:
    """Send a signal to those that still exist."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def command_of(process: psutil.Process) -> str:
    """Return the command of a process; empty if it has ended."""
    try:
        ended = not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        return "" if ended else " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _group(leader: int) -> Iterator[tuple[psutil.Process, str]]:
    """The processes of a group, with their names."""
    for process in psutil.Process(leader).children(recursive=True):
        try:
            if os.getpgid(process.pid) == leader:
                yield process, process.name()
        except (psutil.NoSuchProcess, ProcessLookupError):
            continue  # it ended in between


def records_in(spark: SparkSession, output: Path) -> list[Record]:
    """Return the content of a file sink, according to its log of the batches."""
    frame: DataFrame = spark.read.parquet(str(output))
    return [
        Record(
            stream=row.stream,
            shard=row.shardId,
            sequence=int(row.sequenceNumber),
            key=row.partitionKey,
            data=bytes(row.data),
        )
        for row in frame.collect()
    ]


def committed_files(output: Path) -> dict[str, int]:
    """Return the files of a file sink by its log of the batches, each with the number of its
    batch, in the order of batches."""
    logs = {int(log.stem): log for log in (output / "_spark_metadata").glob("[0-9]*")}
    batches: dict[str, int] = {}
    for batch in sorted(logs):
        # Every tenth log repeats the lines of all before it.
        for line in logs[batch].read_text().splitlines()[1:]:
            batches.setdefault(unquote(urlsplit(json.loads(line)["path"]).path), batch)
    return batches


def committed_rows(output: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a file sink by its log of the batches, without Spark; each has the number
    of its `batch`."""
    return [
        row | {"batch": batch}
        for path, batch in committed_files(output).items()
        for row in pq.read_table(path, columns=list(columns)).to_pylist()
    ]


def files_per_batch(output: Path) -> dict[int, int]:
    """Return the number of files of each batch of a file sink: one for each task that had rows."""
    found: dict[int, int] = {}
    for path in (output / "_spark_metadata").iterdir():
        if path.name.isdigit():
            lines = path.read_text().splitlines()[1:]
            found[int(path.name)] = sum('"action":"add"' in line for line in lines)
    return found
