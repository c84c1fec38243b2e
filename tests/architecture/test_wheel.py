"""The built wheel: exactly the files of the allowlist, and Spark finds the format in it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.architecture.layers import LAYERS, ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT)
    (built,) = folder.iterdir()
    return built


def _run(command: list[str], *, cwd: Path, env: dict[str, str] | None = None) -> str:
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_wheel_holds_what_the_allowlist_says_and_nothing_else(wheel: Path) -> None:
    tracked = _run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
    expected = {
        name
        for name in tracked.splitlines()
        if name.split("/")[0].removesuffix(".py") in LAYERS and (ROOT / name).is_file()
    }
    found = set(zipfile.ZipFile(wheel).namelist())
    metadata = {name for name in found if name.startswith("spark_ssp-0.1.0.dist-info/")}
    assert sorted(found - metadata) == sorted(expected)
    assert {name.split("/", 1)[1] for name in metadata} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "licenses/LICENSE",
    }
    assert all(f"{layer}/py.typed" in found for layer in LAYERS if (ROOT / layer).is_dir())


_LOOK_UP = """
from pyspark.sql import SparkSession
from pyspark.errors import PySparkException
import pyspark_kinesis_ssp
print("module:", pyspark_kinesis_ssp.__file__)
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
print("columns:", spark.readStream.format("kinesis-ssp").option("streamName", "s").load().columns)
try:
    spark.readStream.format("kinesis-ssp").load()
except PySparkException as error:
    print("error:", str(error))
spark.stop()
"""


@pytest.mark.timeout(600)  # it starts a Spark of its own, with nothing cached
def test_spark_finds_the_format_in_an_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    """The new environment has the wheel; what the wheel requires it borrows from this one."""
    home = tmp_path / "venv"
    venv.EnvBuilder(with_pip=False, symlinks=True).create(home)
    python = home / "bin" / "python"
    here = Path(sysconfig.get_path("purelib"))
    site = home / here.relative_to(sys.prefix)
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps"]
    _run([*install, "--python", str(python), str(wheel)], cwd=tmp_path)
    # Folders named in a .pth file are searched, but .pth files in them are not read: so the
    # editable install of this checkout stays out.
    (site / "borrowed.pth").write_text(f"{here}\n", encoding="utf-8")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME"}
    }
    environment |= {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    output = _run([str(python), "-c", _LOOK_UP], cwd=tmp_path, env=environment)
    assert f"module: {site}" in output
    assert "columns: ['partitionKey', 'data'" in output
    assert "invalid-options" in output
    assert "streamName" in output
