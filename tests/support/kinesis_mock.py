"""kinesis-mock, an independent emulator of Kinesis (npm package `kinesis-local`), for tests.

Its version and checksum are in `tests/servers/package-lock.json`. It is installed on first use into
the checkout's `.cache/`, with npm; node runs it on free ports of 127.0.0.1.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from embedded_kinesis.service import ClientSettings

_ROOT = Path(__file__).resolve().parents[2]
_SERVERS = _ROOT / "tests" / "servers"
_INSTALLED = _ROOT / ".cache" / "test-servers"
_ANSWER_TIMEOUT_S = 60
_POLL_S = 0.05


class KinesisMock:
    """A context manager: kinesis-mock at `endpoint_url`. Changes of a stream take `change_ms`."""

    def __init__(self, *, change_ms: int = 10) -> None:
        self._change_ms = change_ms
        self._port: int | None = None
        self._clock_ms = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._log: IO[bytes] | None = None

    @property
    def endpoint_url(self) -> str:
        if self._port is None:
            raise RuntimeError("kinesis-mock is not running")
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("kinesis-mock is not running")
        return self._process.pid

    def client_settings(self) -> ClientSettings:
        """Arguments for `boto3.client("kinesis", ...)`."""
        return {
            "endpoint_url": self.endpoint_url,
            "region_name": "us-east-1",
            "aws_access_key_id": "local",
            "aws_secret_access_key": "local",
        }

    def now_ms(self) -> int:
        """Its clock."""
        return time.time_ns() // 1_000_000 + self._clock_ms

    def advance(self, milliseconds: int) -> None:
        """Move its clock forward. Streams' changes and other timers keep their pace."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._folder is not None
        self._clock_ms += milliseconds
        self._process.stdin.write(f"advance {milliseconds}\n".encode())
        self._process.stdin.flush()
        moved = Path(self._folder.name, "port.clock")
        while self._wait_for(moved, "move its clock") != str(self._clock_ms):
            time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        package = install() / "node_modules" / "kinesis-local"
        self._folder = tempfile.TemporaryDirectory(prefix="kinesis-mock-")
        listening = Path(self._folder.name, "port")
        self._log = Path(self._folder.name, "log").open("w+b")
        self._process = subprocess.Popen(
            ["node", "--require", str(_SERVERS / "preload.cjs"), str(package / "main.js")],
            env=os.environ | self._environment(package, listening),
            stdin=subprocess.PIPE,  # it ends when this is closed, so also with this process
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        try:
            self._port = int(self._wait_for(listening, "start"))
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _environment(self, package: Path, listening: Path) -> dict[str, str]:
        names = ("CREATE_STREAM", "DELETE_STREAM", "MERGE_SHARDS", "SPLIT_SHARD")
        durations = {
            f"{name}_DURATION": f"{self._change_ms}ms" for name in (*names, "UPDATE_SHARD_COUNT")
        }
        return durations | {
            "KINESIS_MOCK_PLAIN_PORT": "1",  # see preload.cjs
            "KINESIS_MOCK_TLS_PORT": "2",
            "KINESIS_MOCK_CERT_PATH": str(package / "server.json"),
            "LISTENING_FILE": str(listening),
            "LOG_LEVEL": "WARN",
            "SHARD_LIMIT": "1000",
        }

    def _wait_for(self, published: Path, purpose: str) -> str:
        """What the file holds once it is there."""
        assert self._process is not None
        deadline = time.monotonic() + _ANSWER_TIMEOUT_S
        while not published.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                assert self._log is not None
                self._log.seek(0)
                said = self._log.read().decode(errors="replace")
                raise RuntimeError(f"kinesis-mock did not {purpose}. It said:\n{said}")
            time.sleep(_POLL_S)
        return published.read_text()

    def _stop(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.kill()  # it would wait 30 s for its connections otherwise
            self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
        self._port = None


def install() -> Path:
    """The folder with `node_modules` in it; filled by `npm ci` when the lock file is news to it."""
    _INSTALLED.mkdir(parents=True, exist_ok=True)
    with (_INSTALLED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes that run side by side
        done = _INSTALLED / "installed.json"
        wanted = (_SERVERS / "package-lock.json").read_bytes()
        if not done.exists() or done.read_bytes() != wanted:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(_SERVERS / name, _INSTALLED / name)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            command.append("--omit-lockfile-registry-resolved")
            found = subprocess.run(
                command,
                cwd=_INSTALLED,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if found.returncode != 0:
                raise RuntimeError(f"{' '.join(command)} failed:\n{found.stdout}")
            done.write_bytes(wanted)
    return _INSTALLED
