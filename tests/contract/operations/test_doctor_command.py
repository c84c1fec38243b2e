"""`spark-ssp doctor`: options, access, versions, each with its remedy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from spark_ssp.operations.commands import doctor
from spark_ssp.operations.commands.doctor import task_interpreter
from spark_ssp.testing.kinesis.state.faults import AccessDenied
from tests.contract.operations.conftest import KEYS, Cloud
from tests.support.guides import GUIDE, blocks
from tests.support.kafka.topics import KafkaTopics
from tests.support.operations.command import WIDTHS, Run, check_output, run
from tests.support.servers.kafka_broker import KafkaBroker

OUTPUTS = Path(__file__).parent / "outputs"
SECRET = "wJalrXUtnFEMI/K7MDENG"


def _file(folder: Path, options: dict[str, Any]) -> str:
    path = folder / "job.json"
    path.write_text(json.dumps(options))
    return f"--options={path}"


def _levels(found: Run) -> dict[str, str]:
    return {one["check"]: one["level"] for one in found.document()}


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)


@pytest.fixture
def orders(cloud: Cloud) -> Cloud:
    cloud.kinesis.state.create_stream("orders", shards=2)
    return cloud


def test_a_query_that_would_run(orders: Cloud, tmp_path: Path) -> None:
    file = _file(tmp_path, {"streamName": "orders", "maxRecordsPerTrigger": 1000})
    found = orders.run("doctor", file, "--json", dynamodb=False)
    assert found.code == 0, found.out
    levels = _levels(found)
    assert set(levels.values()) <= {"ok", "note"}
    assert levels["options"] == "ok"
    for action in ("DescribeStreamSummary", "ListShards", "GetShardIterator", "GetRecords"):
        assert levels[f"kinesis:{action}"] == "ok"
    assert levels["clock"] == levels["format kinesis-ssp"] == levels["PySpark"] == "ok"
    made = orders.kinesis.calls.by_operation()
    assert not [name for name in made if name.startswith(("Put", "Create", "Delete", "Update"))]


@pytest.mark.parametrize("columns", WIDTHS)
def test_output_of_options_that_a_query_refuses(tmp_path: Path, columns: int) -> None:
    file = _file(
        tmp_path,
        {
            "streamName": "orders",
            "slot": "4",
            "awsAccessKeyId": "AKIAEXAMPLE",
            "fetchBufferSize": "1",
            "somethingElse": "x",
        },
    )
    found = run("doctor", file, columns=columns)
    assert found.code == 1
    lines = found.out.splitlines()
    start = next(n for n, line in enumerate(lines) if " options: " in line)
    check_output(OUTPUTS / f"doctor-{columns}.txt", "\n".join(lines[start:]) + "\n")
    assert "AKIAEXAMPLE" not in found.out + found.err


@pytest.mark.parametrize("setting", ["PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON", "python3"])
@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("exit 1", "no Python interpreter"),
        ("echo 'Jupyter Notebook 7'", "no Python interpreter"),
        (None, "not a program"),
        (f'exec {sys.executable} -I -S "$@"', "no module spark_ssp"),
        # In a checkout, such as this one, it finds the modules.
        (f'exec {sys.executable} -S "$@"', "no package boto3"),
    ],
)
def test_an_interpreter_that_does_not_find_the_formats(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    script: str | None,
    found: str,
) -> None:
    program = tmp_path / "python3"
    if script is not None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    if setting == "python3":
        monkeypatch.delenv("PYSPARK_PYTHON")
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if script else str(tmp_path))
    else:
        monkeypatch.setenv(setting, str(program))
    result = run("doctor", "--json")
    problems = {one["check"]: one for one in result.document() if one["level"] == "problem"}
    assert result.code == 1
    assert found in problems["Python of the JVM"]["found"]
    assert "PYSPARK_PYTHON" in problems["Python of the JVM"]["remedy"]


def test_a_slow_interpreter_is_not_a_wrong_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python3"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(program))
    monkeypatch.setattr(doctor, "_PYTHON_TIMEOUT_S", 0.1)
    levels = {one["check"]: one["level"] for one in run("doctor", "--json").document()}
    assert levels["Python of the JVM"] == "warning"


@pytest.mark.parametrize(
    ("name", "text", "level", "found"),
    [
        ("pyspark.py", "__version__ = '3.5.6'", "warning", "PySpark 3.5.6"),
        ("pyspark.py", "__version__ = 'vendor'", "problem", "ends in UnsupportedError"),
        ("pyspark.py", "1 / 0", "ok", ""),
        ("pyspark_orders.py", "import sys; sys.exit('a job')", "note", "pyspark_orders"),
        ("pyspark_kafka_ssp.py", "print(1); 1 / 0", "problem", "ends in ZeroDivisionError"),
    ],
)
def test_modules_in_the_folder_in_which_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, level: str, found: str
) -> None:
    (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    result = run("doctor", "--json")
    lookup = [one for one in result.document() if one["check"] == "Python of the JVM"]
    assert result.code == (1 if level == "problem" else 0)
    assert (lookup[-1]["level"], found in lookup[-1]["found"]) == (level, True)


def test_an_older_spark_may_be_first_on_the_path(tmp_path: Path) -> None:
    """As by SPARK_HOME: pip's version is not that of the module."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("__version__ = '3.5.6'")

    def ran(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True
        )
        return done.stdout + done.stderr

    used = ran("-c", "import spark_ssp; spark_ssp.register")
    assert "[unsupported] PySpark: found PySpark 3.5.6" in used
    assert "unset SPARK_HOME" in used
    (found,) = [
        one
        for one in json.loads(ran("-m", "spark_ssp", "doctor", "--json"))
        if one["check"] == "PySpark"
    ]
    assert (found["level"], found["found"].partition(",")[0]) == ("problem", "3.5.6")


def test_the_interpreter_of_tasks_is_in_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = tmp_path / "spark-defaults.conf"
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    defaults.write_text("spark.pyspark.python /nowhere/python3\n")
    result = run("doctor", "--json")
    assert (result.code, _levels(result)["Python of tasks"]) == (1, "problem")
    assert _levels(result)["Python of the JVM"] == "ok"
    for mark in ("=", ": ", " = ", "\t"):
        defaults.write_text(f"spark.pyspark.python{mark}{sys.executable}\n")
        assert task_interpreter({}, defaults.read_text()).program == sys.executable
    for empty in ("spark.pyspark.python", "spark.pyspark.python =", "spark.pyspark.python:"):
        defaults.write_text(f"{empty}\nspark.executor.memory 4g\n")
        assert task_interpreter({}, defaults.read_text()).setting == "the path"
    assert run("doctor").code == 0


def test_a_missing_permission_is_named(orders: Cloud) -> None:
    orders.kinesis.faults.add(AccessDenied(), operation="ListShards")
    try:
        found = orders.run("doctor", "--option=streamName=orders", dynamodb=False)
    finally:
        orders.kinesis.faults.clear()
    assert found.code == 1
    (line,) = [line for line in found.out.splitlines() if line.startswith("problem")]
    assert "kinesis:ListShards" in line
    assert "GetRecords" not in found.out


def test_a_clock_that_is_wrong(orders: Cloud) -> None:
    now = orders.clock.now_ms() + 120_000
    options = ("--option=streamName=orders", "--json")
    found = orders.run("doctor", *options, now_ms=now, dynamodb=False)
    (clock,) = [one for one in found.document() if one["check"] == "clock"]
    assert (clock["level"], "NTP" in clock["remedy"]) == ("warning", True)
    assert "2 min ahead" in clock["found"]


def test_leases(orders: Cloud) -> None:
    options = ("--option=streamName=orders", "--option=applicationName=etl")
    found = orders.run("doctor", *options, "--json")
    assert _levels(found)["dynamodb:Scan"] == "note"
    policy = json.loads(blocks(GUIDE / "leases.md", "json")[0])
    names = {action.partition(":")[2] for action in policy["Statement"][0]["Action"]}
    assert {name for name in names if not re.search(rf"\b{name}\b", found.out)} == set()
    orders.table("etl", [])
    assert _levels(orders.run("doctor", *options, "--json"))["dynamodb:Scan"] == "ok"


def test_consumers(orders: Cloud) -> None:
    orders.kinesis.state.register_consumer("orders", "left-over")
    efo = ("--option=streamName=orders", "--option=consumerMode=efo", "--option=consumerName=etl")
    found = orders.run("doctor", *efo, "--json", dynamodb=False)
    assert _levels(found)["consumer"] == "note"
    (listed,) = [one for one in found.document() if one["check"] == "kinesis:ListStreamConsumers"]
    assert "left-over (ACTIVE)" in listed["found"]
    own = orders.run("doctor", *efo, "--option=consumerLifecycle=self", "--json", dynamodb=False)
    assert (own.code, _levels(own)["consumer"]) == (1, "problem")
    orders.kinesis.state.register_consumer("orders", "etl")
    own = orders.run("doctor", *efo, "--option=consumerLifecycle=self", "--json", dynamodb=False)
    assert (own.code, "consumer" in _levels(own)) == (0, False)
    assert _levels(own)["kinesis:DescribeStreamConsumer"] == "ok"
    assert _levels(own)["kinesis:SubscribeToShard"] == "ok"
    assert not orders.kinesis.state.subscriptions("orders")
    orders.kinesis.faults.add(AccessDenied(), operation="SubscribeToShard")
    refused = orders.run("doctor", *efo, dynamodb=False)
    orders.kinesis.faults.clear()
    assert refused.code == 0
    (line,) = [line for line in refused.out.splitlines() if line.startswith("warning")]
    assert "kinesis:SubscribeToShard" in line
    orders.kinesis.faults.add(AccessDenied(), operation="DescribeStreamConsumer")
    refused = orders.run("doctor", *efo, dynamodb=False)
    orders.kinesis.faults.clear()
    assert (refused.code, "kinesis:DescribeStreamConsumer" in refused.out) == (1, True)
    for name in ("etl", "left-over"):
        orders.kinesis.state.deregister_consumer("orders", name)


def test_the_identity_by_sts(orders: Cloud, moto: str) -> None:
    role = "arn:aws:iam::123456789012:role/r"
    options = (f"--option=stsEndpointUrl={moto}", f"--option=roleArn={role}")
    found = orders.run("doctor", "--option=streamName=orders", *options, "--json", dynamodb=False)
    (identity,) = [one for one in found.document() if one["check"] == "identity"]
    assert identity["level"] == "ok"
    assert identity["found"].startswith("arn:aws:sts::123456789012:assumed-role/r/")


@pytest.mark.long
def test_an_unreachable_sts_is_a_problem_only_for_a_role(orders: Cloud) -> None:
    """A query calls STS only to assume a role."""
    environment = {
        **KEYS,
        "AWS_ENDPOINT_URL_KINESIS": orders.kinesis.endpoint_url,
        "AWS_ENDPOINT_URL_STS": "http://127.0.0.1:1",
    }
    options = ("doctor", "--option=streamName=orders", "--region=us-east-1", "--json")
    found = run(*options, environment=environment, now_ms=orders.clock.now_ms())
    assert (found.code, _levels(found)["identity"]) == (0, "warning")
    role = "--role-arn=arn:aws:iam::123456789012:role/r"
    found = run(*options, role, environment=environment)
    assert (found.code, _levels(found)["identity"]) == (1, "problem")


def test_kafka(kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path) -> None:
    topic = topics.create(3)
    options = {"kafka.bootstrap.servers": kafka_broker.bootstrap_servers, "subscribe": topic}
    found = run("doctor", _file(tmp_path, options), "--json")
    assert found.code == 0, found.out
    assert _levels(found)["brokers, Describe"] == "ok"
    missing = run("doctor", _file(tmp_path, options | {"subscribe": f"{topic}-x"}), "--json")
    assert missing.code == 1
    assert "ListOffsets" not in _levels(missing)
    brokers = f"--bootstrap-servers={kafka_broker.bootstrap_servers}"
    found = run("doctor", f"--option=subscribe={topic}", brokers, "--json")
    assert (found.code, _levels(found)["brokers, Describe"]) == (0, "ok")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["subscribe=orders"], "kafka.bootstrap.servers"),
        (["Subscribe=orders", "streamName=orders"], "use streamName"),
        (["kafka.bootstrap.servers=127.0.0.1:1"], "subscribe"),
    ],
)
def test_options_of_one_source_select_its_checks(
    options: list[str], expected: str, tmp_path: Path
) -> None:
    given = dict(option.split("=") for option in options)
    for arguments in ([f"--option={option}" for option in options], [_file(tmp_path, given)]):
        found = run("doctor", *arguments, "--json")
        assert found.code == 1
        problems = [one for one in found.document() if one["check"] == "options"]
        assert any(expected in f"{one['found']} {one['remedy']}" for one in problems), problems


def test_a_file_with_properties_of_kafka_is_one_of_the_kafka_source(tmp_path: Path) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders", "region": "eu-west-1"}
    found = run("doctor", _file(tmp_path, given), "--json")
    problems = [one for one in found.document() if one["check"] == "options"]
    assert any("region" in f"{one['found']} {one['remedy']}" for one in problems), problems


def test_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.python.unix.domain.socket.enabled   true\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    found = run("doctor", "--json")
    levels = _levels(found)
    assert levels["reader sockets"] == "ok"
    assert levels["Java"] == "note"  # This Python can be a client of Spark Connect.
    assert levels["dependencies"] == levels["Kafka reads"] == "ok"
    assert "identity" not in levels


def test_defaults_that_cannot_be_read_hide_no_other_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def read_text(path: Path, **_: object) -> str:
        raise PermissionError(path)

    expected = _levels(run("doctor", "--json"))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setattr(Path, "read_text", read_text)
    levels = _levels(run("doctor", "--json"))
    assert levels == expected | {"spark-defaults.conf": "note"}


@pytest.mark.parametrize(
    ("version", "api", "level"),
    [
        ("4", None, "ok"),
        ("vendor-4.1", None, "ok"),
        ("4.1.0+vendor", None, "ok"),  # which has added the limits
        ("4.2", "PySpark 4.2", "note"),
        ("5.0.dev1", ImportError("no module"), "problem"),
        ("3", ImportError("no module"), "problem"),
    ],
)
def test_a_version_of_pyspark_in_any_form(
    monkeypatch: pytest.MonkeyPatch, version: str, api: object, level: str
) -> None:
    monkeypatch.setattr(doctor, "pyspark_version", lambda: version)
    monkeypatch.setattr(doctor, "_asked_api", Mock(side_effect=[api]))
    found = doctor._pyspark()
    assert (found.level, version in found.found) == (level, True)


def test_a_driver_needs_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    monkeypatch.setattr(
        doctor, "find_spec", lambda name: None if name == "grpc" else find_spec(name)
    )
    found = run("doctor", "--json")
    assert (found.code, _levels(found)["Java"]) == (1, "problem")
    monkeypatch.setenv("SPARK_REMOTE", "sc://spark.example.com")
    assert run("doctor").code == 0


def test_a_file_that_is_no_options(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(f'{{"awsSecretAccessKey": "{SECRET}"')
    found = run("doctor", f"--options={path}", environment=KEYS)
    assert found.code == 2
    assert SECRET not in found.out + found.err
