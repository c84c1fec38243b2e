"""The Kinesis Client Library (KCL) in three versions, each as Java's class path and Python's.

- 2.7.2: amazon-kclpy 2.2.3, installed on first use into the checkout's `.cache/`, 33 MB.
- 3.1.3: amazon-kclpy 3.1.3, part of the development environment.
- 3.5.1: the library itself from Maven Central, 75 MB on first use, inside the MultiLangDaemon of
  3.1.3.

The jars are held to the checksums in `tests/servers/`: amazon-kclpy downloads them unseen while it
is built.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

from spark_ssp.testing.kafka.jars import Artifact, fetch, installing_into, verify
from tests.support.servers.cache import CACHE, checksums, run

_CACHE: Final = CACHE / "kcl"
_PATIENCE_S: Final = 900

_CORE_3_5: Final = Artifact(
    organisation="software.amazon.kinesis",
    name="amazon-kinesis-client",
    version="3.5.1",
    checksums=checksums("kcl-3.5.1.sha256"),
)
_PROTOBUF: Final = Artifact(
    organisation="com.google.protobuf",
    name="protobuf-java",
    version="4.31.1",
    checksums=checksums("protobuf-java.sha256"),
)
"""amazon-kclpy 2.2.3 brings an older one than its KCL was compiled for. With that, the KCL skips
each aggregated record, with the records fetched together, and only logs it."""

_DAEMON_PARTS: Final = (
    "amazon-kinesis-client-multilang-*.jar",
    "commons-beanutils-*.jar",
    "commons-collections-*.jar",
    "jcommander-*.jar",
    "logback-*.jar",
)
"""The dependencies of the MultiLangDaemon beside the library and its dependencies."""


class KclVersion(StrEnum):
    V2_7 = "2.7.2"
    V3_1 = "3.1.3"
    V3_5 = "3.5.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kcl:
    """One version, ready to run."""

    class_path: str
    python_path: Path
    """The folder that holds `amazon_kclpy`."""


@cache
def provide(version: KclVersion) -> Kcl:
    """The version, fetched if need be."""
    import amazon_kclpy  # not in every environment of `make long`

    package = Path(amazon_kclpy.__file__).parent
    if version is KclVersion.V2_7:
        folder = _install("2.2.3")
        newer_first = (fetch(_PROTOBUF), folder / "amazon_kclpy" / "jars")
        return Kcl(class_path=os.pathsep.join(map(_all_of, newer_first)), python_path=folder)
    verify(package / "jars", checksums("kclpy-3.1.3.sha256"), pattern="*.jar")
    class_path = _all_of(package / "jars")
    if version is KclVersion.V3_5:
        parts = [path for part in _DAEMON_PARTS for path in (package / "jars").glob(part)]
        class_path = os.pathsep.join([_all_of(fetch(_CORE_3_5)), *map(str, sorted(parts))])
    return Kcl(class_path=class_path, python_path=package.parent)


def _all_of(folder: Path) -> str:
    """Java's words for all jars of a folder."""
    return f"{folder}{os.sep}*"


def _install(version: str) -> Path:
    """amazon-kclpy of another version than the environment's, in a separate folder."""
    folder = _CACHE / f"kclpy-{version}"
    with installing_into(_CACHE):
        if not folder.exists():
            fresh = folder.with_suffix(".part")
            shutil.rmtree(fresh, ignore_errors=True)
            command = [sys.executable, "-m", "uv", "pip", "install", "--quiet"]
            command += ["--python", sys.executable, "--target", str(fresh)]
            # `--no-config`: the constraint in pyproject.toml has no hash and would be refused.
            command += ["--no-config", "--no-deps", "--require-hashes"]
            command += ["--requirements", str(checksums(f"kclpy-{version}.txt"))]
            run(command, timeout_s=_PATIENCE_S)
            verify(
                fresh / "amazon_kclpy" / "jars",
                checksums(f"kclpy-{version}.sha256"),
                pattern="*.jar",
            )
            fresh.rename(folder)
    return folder
