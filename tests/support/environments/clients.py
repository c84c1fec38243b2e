"""Run the tests of the Kafka clients with other versions of confluent-kafka than that of the lock:
`python -m tests.support.environments.clients`. The oldest runs all tests of the contract with
Kafka, every other one those of the records read from librdkafka's memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from spark_ssp.testing.kafka.jars import installing_into
from tests.support.servers.cache import CACHE

_ROOT: Final = Path(__file__).resolve().parents[3]
_READER: Final = "tests/contract/kafka_reader"

OLDEST: Final = "2.14.2"
"""The lowest version that the project declares."""

VERSIONS: Final = (OLDEST, "2.15.1")
"""The last release of each minor version before that of the lock."""


def main() -> None:
    failed = [version for version in VERSIONS if not _passes(version)]
    if failed:
        sys.exit(f"tests failed with confluent-kafka {', '.join(failed)}")


def _passes(version: str) -> bool:
    print(f"--- confluent-kafka {version}", flush=True)
    parts = (
        (_READER, "tests/contract/kafka")
        if version == OLDEST
        else (f"{_READER}/test_native.py", f"{_READER}/test_headers.py")
    )
    # Before the environment's own packages.
    ours = {**os.environ, "PYTHONPATH": str(client(version))}
    # Long tests too, but for the faults of the sink, which take minutes with each client.
    chosen = ["-m", "not soak and not interop and not release", "-k", "not exactly_once_faults"]
    command = [sys.executable, "-m", "pytest", "--quiet", *chosen, *parts]
    return subprocess.run(command, cwd=_ROOT, env=ours, check=False).returncode == 0


def client(version: str) -> Path:
    """Return a folder with this version of confluent-kafka alone, installed unless it is there."""
    folder = CACHE / "environments" / f"confluent-kafka-{version}"
    with installing_into(folder):
        target = folder / "packages"
        if not (target / f"confluent_kafka-{version}.dist-info").exists():
            install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps"]
            wanted = f"confluent-kafka=={version}"
            subprocess.run([*install, "--target", str(target), wanted], check=True)
    return target


if __name__ == "__main__":
    main()
