"""kinesis-mock, an independent emulator of Kinesis (npm package `kinesis-local`), for tests. Its
version and checksum are in `tests/servers/package-lock.json`. It is installed on first use into the
checkout's `.cache/`, with npm; node runs it on free ports of 127.0.0.1."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from spark_ssp.testing.kafka.jars import installing_into
from spark_ssp.testing.kinesis.service import ClientSettings
from tests.support.servers.cache import CACHE
from tests.support.servers.process import ServerProcess

_ROOT = Path(__file__).resolve().parents[3]
_SERVERS = _ROOT / "tests" / "servers"
_INSTALLED = CACHE / "test-servers"
_ANSWER_TIMEOUT_S = 60
_POLL_S = 0.05


class KinesisMock(ServerProcess):
    """A context manager: kinesis-mock at `endpoint_url`. Changes of a stream take `change_ms`."""

    def __init__(self, *, change_ms: int = 10) -> None:
        # It would wait 30 s for its connections: it is killed at once.
        super().__init__("kinesis-mock", patience_s=0)
        self._change_ms = change_ms
        self._port = 0
        self._clock_ms = 0
        self._folder = Path()

    @property
    def endpoint_url(self) -> str:
        self._running()
        return f"http://127.0.0.1:{self._port}"

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
        process = self._running()
        assert process.stdin is not None
        self._clock_ms += milliseconds
        process.stdin.write(f"advance {milliseconds}\n".encode())
        process.stdin.flush()
        moved = self._folder / "port.clock"
        while self._wait_for(moved, "move its clock") != str(self._clock_ms):
            time.sleep(_POLL_S)

    def _start(self, resources: ExitStack) -> None:
        package = install() / "node_modules" / "kinesis-local"
        self._folder = Path(
            resources.enter_context(tempfile.TemporaryDirectory(prefix="kinesis-mock-"))
        )
        listening = self._folder / "port"
        with (self._folder / "log").open("wb") as log:
            process = subprocess.Popen(
                ["node", "--require", str(_SERVERS / "preload.cjs"), str(package / "main.js")],
                env=os.environ | self._environment(package, listening),
                stdin=subprocess.PIPE,  # it ends when this is closed, so also with this process
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._own(process, resources)
        self._port = int(self._wait_for(listening, "start"))

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
        """Return the content of the file once it exists."""
        process = self._running()
        deadline = time.monotonic() + _ANSWER_TIMEOUT_S
        while not published.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                log = (self._folder / "log").read_text(errors="replace")
                raise RuntimeError(f"kinesis-mock did not {purpose}. Its log:\n{log}")
            time.sleep(_POLL_S)
        return published.read_text()


def install() -> Path:
    """The folder with `node_modules` in it; filled by `npm ci` when the lock file is news to it."""
    with installing_into(_INSTALLED):
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
