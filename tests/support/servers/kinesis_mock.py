"""kinesis-mock, an independent emulator of Kinesis (npm package `kinesis-local`), for tests. Its
version and checksum are in `tests/servers/package-lock.json`. It is installed on first use into the
checkout's `.cache/`, with npm; node runs it on free ports of 127.0.0.1."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

from tests.support.servers.cache import CACHE, checksums, install_locked, run
from tests.support.servers.process import KinesisEmulator

_INSTALLED = CACHE / "test-servers"


class KinesisMock(KinesisEmulator):
    """A context manager: kinesis-mock at `endpoint_url`. Changes of a stream take 10 ms."""

    def __init__(self) -> None:
        # It would wait 30 s for its connections: it is killed at once.
        super().__init__("kinesis-mock", patience_s=0)
        self._port = 0
        self._clock_ms = 0

    @property
    def endpoint_url(self) -> str:
        self._running()
        return f"http://127.0.0.1:{self._port}"

    def now_ms(self) -> int:
        """Its clock."""
        return time.time_ns() // 1_000_000 + self._clock_ms

    def advance(self, milliseconds: int) -> None:
        """Move its clock forward. Streams' changes and other timers keep their pace."""
        process = self._running()
        assert process.stdin is not None
        self._clock_ms += milliseconds
        process.stdin.write(f"advance {milliseconds}\n".encode())
        process.stdin.flush()
        moved = self._folder / "port.clock"
        self._wait_until(
            lambda: moved.exists() and moved.read_text() == str(self._clock_ms), "move its clock"
        )

    def _start(self, resources: ExitStack) -> None:
        package = install() / "node_modules" / "kinesis-local"
        self._make_folder(resources)
        listening = self._folder / "port"
        self._launch(
            ["node", "--require", checksums("preload.cjs"), package / "main.js"],
            os.environ | self._environment(package, listening),
            resources,
        )
        self._wait_until(listening.exists, "start")
        self._port = int(listening.read_text())

    def _environment(self, package: Path, listening: Path) -> dict[str, str]:
        names = ("CREATE_STREAM", "DELETE_STREAM", "MERGE_SHARDS", "SPLIT_SHARD")
        durations = {f"{name}_DURATION": "10ms" for name in (*names, "UPDATE_SHARD_COUNT")}
        return durations | {
            "KINESIS_MOCK_PLAIN_PORT": "1",  # see preload.cjs
            "KINESIS_MOCK_TLS_PORT": "2",
            "KINESIS_MOCK_CERT_PATH": str(package / "server.json"),
            "LISTENING_FILE": str(listening),
            "LOG_LEVEL": "WARN",
            "SHARD_LIMIT": "1000",
        }


def install() -> Path:
    """The folder with `node_modules` in it; filled by `npm ci` when the lock file is news to it."""
    install_locked(_INSTALLED, checksums("package-lock.json"), _install)
    return _INSTALLED


def _install() -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(checksums(name), _INSTALLED / name)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    run([*command, "--omit-lockfile-registry-resolved"], cwd=_INSTALLED)
