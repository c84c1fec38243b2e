"""The first failures of a new user: each is in the guide, and its remedy leads to rows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest

from spark_ssp.common.errors import UnsupportedError
from spark_ssp.testing.kinesis import EmbeddedKinesis
from spark_ssp.testing.kinesis.state.faults import AccessDenied
from tests.architecture.layers import ROOT
from tests.support.kinesis.feeds import EmbeddedFeed
from tests.support.spark.drivers import ENVIRONMENT

_PROGRAM = ROOT / "tests" / "spark" / "programs" / "first_job.py"
_GUIDE = ROOT / "docs" / "guide"
_RECORDS = 20


def _section(page: str, heading: str) -> str:
    """Return the section of a guide page whose heading begins so."""
    text = (_GUIDE / f"{page}.md").read_text()
    match = re.search(rf"^## `?{re.escape(heading)}.*?(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert match is not None, f"{page}.md has no section {heading}"
    return match[0]


class Job:
    """The program of a new user: a Spark driver in an environment without AWS settings."""

    def __init__(self, folder: Path, environment: Mapping[str, str | None]) -> None:
        folder.mkdir(exist_ok=True)
        shutil.copy(_PROGRAM, folder / "orders.py")
        wanted: dict[str, str | None] = {
            **ENVIRONMENT,
            "AWS_ACCESS_KEY_ID": None,
            "AWS_SECRET_ACCESS_KEY": None,
            "AWS_DEFAULT_REGION": None,
            "AWS_REGION": None,
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        self._errors = folder / "errors.txt"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "orders.py"],
                cwd=folder,
                env={
                    name: text for name, text in (os.environ | wanted).items() if text is not None
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def run(self, options: Mapping[str, str], checkpoint: Path | None = None) -> str:
        """Return `rows N` or `error TEXT`; or the end of standard error, if the driver ends."""
        job: dict[str, Any] = {"options": dict(options)}
        if checkpoint is not None:
            job["checkpoint"] = str(checkpoint)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("answer "):
                answer: str = json.loads(line.removeprefix("answer "))
                return answer
        self._process.wait()
        return self._errors.read_text()


@pytest.fixture
def feed(kinesis: EmbeddedKinesis) -> EmbeddedFeed:
    feed = EmbeddedFeed(kinesis)
    feed.create("orders", shards=2)
    feed.put("orders", _RECORDS)
    return feed


@pytest.fixture
def right(kinesis: EmbeddedKinesis) -> dict[str, str]:
    return {
        "streamName": "orders",
        "endpointUrl": kinesis.endpoint_url,
        "region": kinesis.state.region,
        "awsAccessKeyId": "local",
        "awsSecretAccessKey": "local",
        "startingPosition": "TRIM_HORIZON",
    }


def _without(options: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: text for name, text in options.items() if name not in names}


@pytest.mark.usefixtures("spark_environment", "feed")
@pytest.mark.long
def test_options_and_access(
    kinesis: EmbeddedKinesis, right: dict[str, str], tmp_path: Path
) -> None:
    def meets(answer: str, kind: str, found: str, row: str) -> None:
        assert f"[{kind}]" in answer
        assert found in answer
        assert row in _section("troubleshooting", f"[{kind}]")

    with Job(tmp_path / "job", {}) as job:
        done = f"rows {_RECORDS}"
        answer = job.run(_without(right, "region"))
        meets(answer, "invalid-options", "region", "| no region | Set `region`")
        assert job.run(right) == done
        answer = job.run(_without(right, "awsAccessKeyId", "awsSecretAccessKey"))
        meets(answer, "access", "no credentials", "A local service takes any keys.")
        answer = job.run(right | {"streamName": "order"})
        meets(answer, "stream-not-found", "order", "Check `streamName`")
        nowhere = {"endpointUrl": "http://127.0.0.1:1", "retry.maxAttempts": "2"}
        meets(job.run(right | nowhere), "service-unavailable", "127.0.0.1:1", "Check `endpointUrl`")
        kinesis.faults.add(AccessDenied(), operation="ListShards")
        meets(job.run(right), "access", "kinesis:ListShards", "Allow the action")
        kinesis.faults.clear()
        assert job.run(right) == done


@pytest.mark.long
@pytest.mark.usefixtures("spark_environment")
def test_a_deleted_stream_and_a_torn_file(
    feed: EmbeddedFeed, kinesis: EmbeddedKinesis, right: dict[str, str], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    with Job(tmp_path / "job", {}) as job:
        assert job.run(right, checkpoint) == f"rows {_RECORDS}"
        torn = checkpoint / "offsets" / "1"
        torn.touch()
        answer = job.run(right, checkpoint)
        assert "Incomplete log file" in answer
        section = _section("troubleshooting", "A damaged checkpoint: `Incomplete log file`")
        assert "command.md#damaged-files" in section
        torn.unlink()
        assert job.run(right, checkpoint) == "rows 0"
        kinesis.state.delete_stream("orders")
        answer = job.run(right, checkpoint)
        assert "[stream-not-found]" in answer
        assert "new checkpoint" in _section("troubleshooting", "[stream-not-found]")
        feed.create("orders", shards=1)
        feed.put("orders", _RECORDS)
        assert "[data-loss]" in job.run(right, checkpoint)
        assert job.run(right, tmp_path / "new") == f"rows {_RECORDS}"


@contextmanager
def _expected(page: str, section: str, *texts: str) -> Iterator[list[str]]:
    """Check that the answers of the block are in a section of the guide."""
    answers: list[str] = []
    yield answers
    for text in texts:
        assert text in answers[0]
        assert text in _section(page, section)


@pytest.mark.long
@pytest.mark.usefixtures("spark_environment", "feed")
def test_the_interpreter_java_and_files_of_the_job(right: dict[str, str], tmp_path: Path) -> None:
    """The other tests are the remedy: their environment differs by the cause alone."""
    with _expected("troubleshooting", "[JAVA_GATEWAY_EXITED]", "JAVA_GATEWAY_EXITED") as answers:
        nowhere: dict[str, str | None] = {"JAVA_HOME": str(tmp_path), "SPARK_HOME": None}
        with Job(tmp_path / "no-java", nowhere) as job:
            answers.append(job.run(right))
    without = tmp_path / "python3"
    without.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    without.chmod(0o755)
    with Job(tmp_path / "other", {"PYSPARK_DRIVER_PYTHON": str(without)}) as job:
        assert "[DATA_SOURCE_NOT_FOUND]" in job.run(right)
    folder = tmp_path / "hiding"
    folder.mkdir()
    hiding = folder / "pyspark_orders.py"
    hiding.write_text("1 / 0\n")
    with Job(folder, {}) as job:
        assert "[DATA_SOURCE_NOT_FOUND]" in job.run(right)
    assert "pyspark_orders" in _section("format-not-found", "A file that hides a module")
    hiding.rename(folder / "orders_of_spark.py")
    (folder / "spark_ssp.py").write_text("")
    with Job(folder, {}) as job:
        assert "No module named 'spark_ssp.common'" in job.run(right)
    (folder / "spark_ssp.py").unlink()
    with Job(folder, {}) as job:
        assert job.run(right) == f"rows {_RECORDS}"


def test_pyspark_3(tmp_path: Path) -> None:
    (tmp_path / "pyspark" / "sql").mkdir(parents=True)
    for file in ("__init__.py", "sql/__init__.py"):
        (tmp_path / "pyspark" / file).touch()
    result = subprocess.run(
        [sys.executable, "-c", "import pyspark_kafka_ssp"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
    )
    last = result.stderr.strip().splitlines()[-1]
    assert f"[{UnsupportedError.kind}] PySpark" in last
    assert "[unsupported] PySpark" in _section("format-not-found", "PySpark below 4.0")
