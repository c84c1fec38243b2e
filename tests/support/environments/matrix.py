"""The versions of PySpark and Python that are tested, and the scenarios that run on each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class PySpark:
    """A release of PySpark. `sha256` is the checksum of its source distribution, the only one on
    PyPI."""

    version: str
    sha256: str

    @property
    def requirement(self) -> str:
        """A line of a requirements file."""
        return f"pyspark=={self.version} --hash=sha256:{self.sha256}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An environment: PySpark first, as a platform has it, then the wheel.

    `python` is a version, or None for the running interpreter. With `is_lowest` the direct
    dependencies have the lowest versions that the project declares, otherwise those of the lock.
    With `has_tests` the environment also has the extras and the tools that the tests import.
    """

    pyspark: PySpark
    python: str | None = None
    is_lowest: bool = False
    has_tests: bool = False

    @property
    def name(self) -> str:
        """The name of its folder."""
        parts = [f"pyspark-{self.pyspark.version}", f"python-{self.python or 'running'}"]
        parts += ["lowest"] if self.is_lowest else []
        parts += ["tests"] if self.has_tests else []
        return "-".join(parts)


PYSPARK_4_0: Final = PySpark(
    version="4.0.2",
    sha256="938b4a1883383374d331ebfcb5d92debfa1891cf3d7a6d730520a1a2d23f1a90",
)
PYSPARK_4_1: Final = PySpark(
    version="4.1.1",
    sha256="77f78984aa84fbe865c717dd37b49913b4e5c97d76ef6824f932f1aefa6621ec",
)
PYSPARK_4_2: Final = PySpark(
    version="4.2.0",
    sha256="5ad689d53570ee1674193fd4f9bda065f0db3be9363a27d2a3406cc457b70b61",
)
PYSPARK_4_3: Final = PySpark(
    version="4.3.0",
    sha256="e8c517948eff7088a7aa07449aa8eafa4a15a8d50319de2525a6fd26622476c6",
)

MATRIX: Final = (
    Entry(pyspark=PYSPARK_4_0, python="3.11", is_lowest=True, has_tests=True),
    Entry(pyspark=PYSPARK_4_1, python="3.13", has_tests=True),
    Entry(pyspark=PYSPARK_4_2, python="3.12", has_tests=True),
    Entry(pyspark=PYSPARK_4_3, python="3.11", has_tests=True),
)
"""`make long` runs every scenario in each of these."""

PLATFORMS: Final = (Entry(pyspark=PYSPARK_4_0), Entry(pyspark=PYSPARK_4_1))
"""The PySpark of EMR 8 and of Glue 6, with nothing but the wheel: `make test` runs queries."""

SCENARIOS: Final = (
    "demo promises",
    "split while running",
    "merge while stopped",
    "rows in event time",
    "restart",
    "replayed batch",
    "killed driver",
    "leases between two queries",
    "Kinesis batch read",
    "static side of a stream",
    "enhanced fan-out",
    "Kafka expansion",
    "Kinesis sink",
    "Kafka sink",
    "columns",
    "two-stage pipeline",
    "availableNow and once with limits",
    "graceful stop",
    "lag",
    "metrics",
    "credentials from a function",
    "standalone cluster",
    "errors near the end of the output",
)
"""The arguments of the marker `core`."""
