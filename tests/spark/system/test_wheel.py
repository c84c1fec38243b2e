"""The built wheel contains exactly the files of the allowlist, and queries run from it."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pyarrow.parquet
import pytest

from spark_ssp import __version__
from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.architecture.layers import LINKED, ROOT, TOP_LEVEL
from tests.support.environments.build import Environment, build_wheel
from tests.support.kinesis.feeds import EmbeddedFeed, Record, options_for
from tests.support.servers.clashes import write_clashes
from tests.support.spark.drivers import Driver


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))


def _run(command: list[str], *, cwd: Path, env: dict[str, str] | None = None) -> str:
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_wheel_holds_what_the_allowlist_says_and_nothing_else(wheel: Path) -> None:
    tracked = _run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
    expected = {
        f"spark_ssp/{name}" if name.split("/")[0] in LINKED else name
        for name in tracked.splitlines()
        if name.split("/")[0].removesuffix(".py") in {*TOP_LEVEL, *LINKED}
        and (ROOT / name).is_file()
    }
    found = set(zipfile.ZipFile(wheel).namelist())
    metadata = {name for name in found if name.startswith(f"spark_ssp-{__version__}.dist-info/")}
    assert sorted(found - metadata) == sorted(expected)
    assert {name.split("/", 1)[1] for name in metadata} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }
    assert "spark_ssp/py.typed" in found
    assert {name.split("/")[0].removesuffix(".py") for name in found - metadata} == TOP_LEVEL


@pytest.mark.long  # it installs two environments and starts another Spark
@pytest.mark.timeout(600)
def test_a_query_runs_with_the_wheel_and_what_it_declares(wheel: Path, tmp_path: Path) -> None:
    """Beside files named like the product's modules."""
    bare = Environment(tmp_path / "bare", wheel)
    assert not {"pyspark", "py4j"} & bare.names(), "a platform's PySpark would be replaced"
    clean = Environment(tmp_path / "environment", wheel, extras=frozenset({"pyspark"}))
    assert not {"spark-ssp", "pyspark"} - clean.names()
    assert not {"moto", "pandas", "pytest", "uvicorn"} & clean.names()
    with EmbeddedKinesis() as kinesis:
        feed = EmbeddedFeed(kinesis)
        feed.create("orders", shards=2)
        feed.put("orders", 40)
        options = options_for(feed.endpoint_url) | {"startingPosition": "trim_horizon"}
        queries = [options | {"streamName": "orders"}, options]
        write_clashes(tmp_path / "job")
        clashing = {"PYTHONPATH": str(tmp_path / "job")}
        with Driver(
            tmp_path / "driver", queries, python=clean.python, environment=clashing
        ) as driver:
            works, refused = driver.results()
    assert works["failure"] is None
    assert _read(tmp_path / "driver" / "output-0") == sorted(feed.records)
    assert len({record.shard for record in feed.records}) == 2
    assert "invalid-options" in refused["failure"]
    assert "streamName" in refused["failure"]


def _read(output: Path) -> list[Record]:
    """Return the records in the output of a file sink."""
    table = pyarrow.parquet.read_table(output)
    return sorted(
        Record(
            stream=row["stream"],
            shard=row["shardId"],
            sequence=int(row["sequenceNumber"]),
            key=row["partitionKey"],
            data=row["data"],
        )
        for row in table.to_pylist()
    )


_LOCAL = """
import boto3
from spark_ssp.testing.kinesis import EmbeddedKinesis

with EmbeddedKinesis(dynamodb=True) as service:
    kinesis = boto3.client("kinesis", **service.client_settings())
    kinesis.create_stream(StreamName="orders", ShardCount=2)
    print(kinesis.list_streams()["StreamNames"])
    dynamodb = boto3.client(
        "dynamodb", **service.client_settings() | {"endpoint_url": service.dynamodb_endpoint_url}
    )
    print(dynamodb.list_tables()["TableNames"])
"""


def test_the_embedded_service_runs_with_what_its_extra_declares(
    wheel: Path, tmp_path: Path
) -> None:
    clean = Environment(tmp_path / "environment", wheel, extras=frozenset({"local"}))
    assert "pytest" not in clean.names()
    output = _run([str(clean.python), "-c", _LOCAL], cwd=tmp_path, env={"PATH": os.defpath})
    assert output.split() == ["['orders']", "[]"]
