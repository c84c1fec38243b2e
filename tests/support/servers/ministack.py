"""ministack, an independent emulator of AWS whose Kinesis has SubscribeToShard, for tests. It is
installed on first use into the checkout's `.cache/`, in an environment of its own, since it
requires one version of botocore. It serves HTTP/1.1, and HTTP/2 with TLS."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from spark_ssp.testing.kafka.jars import installing_into
from spark_ssp.testing.kinesis.server import LOOPBACK, listen
from spark_ssp.testing.kinesis.service import ClientSettings
from tests.support.kinesis.certificates import write_certificates
from tests.support.servers.cache import CACHE
from tests.support.servers.process import ServerProcess

_ROOT: Final = Path(__file__).resolve().parents[3]
_LOCK: Final = _ROOT / "tests" / "servers" / "ministack.txt"
_INSTALLED: Final = CACHE / "ministack"
_ANSWER_TIMEOUT_S: Final = 60
_POLL_S: Final = 0.05
# The process ends when its standard input does.
_PROGRAM: Final = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
from hypercorn.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


class Ministack(ServerProcess):
    """A context manager: ministack at `endpoint_url` and, with TLS, at `secure_url`, whose
    certificate is of the authority in the file `authority`."""

    def __init__(self) -> None:
        super().__init__("ministack", patience_s=10)
        self._ports: list[int] = []
        self._folder = Path()

    @property
    def endpoint_url(self) -> str:
        self._running()
        return f"http://{LOOPBACK}:{self._ports[0]}"

    @property
    def secure_url(self) -> str:
        self._running()
        return f"https://{LOOPBACK}:{self._ports[1]}"

    @property
    def authority(self) -> Path:
        return self._folder / "ca.pem"

    def client_settings(self) -> ClientSettings:
        """Arguments for `boto3.client("kinesis", ...)`."""
        return {
            "endpoint_url": self.endpoint_url,
            "region_name": "us-east-1",
            "aws_access_key_id": "local",
            "aws_secret_access_key": "local",
        }

    def _start(self, resources: ExitStack) -> None:
        python = install()
        self._folder = Path(
            resources.enter_context(tempfile.TemporaryDirectory(prefix="ministack-"))
        )
        write_certificates(self._folder, "server")
        pem = str(self._folder / "server.pem")
        plain, secure = (resources.enter_context(listen(0, LOOPBACK)) for _ in range(2))
        self._ports = [each.getsockname()[1] for each in (plain, secure)]
        # Without workers it serves in the process that is ended.
        arguments = ["--workers", "0", "--certfile", pem, "--keyfile", pem]
        arguments += ["--bind", f"fd://{secure.fileno()}"]
        arguments += ["--insecure-bind", f"fd://{plain.fileno()}", "ministack.app:app"]
        environment = {"PATH": os.environ["PATH"], "TMPDIR": str(self._folder)}
        with (self._folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [python, "-c", _PROGRAM, *arguments],
                cwd=self._folder,
                env=environment | {"HOME": str(self._folder), "LOG_LEVEL": "WARNING"},
                pass_fds=(plain.fileno(), secure.fileno()),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._own(process, resources)
        self._wait()

    def _wait(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + _ANSWER_TIMEOUT_S
        while True:
            if self._running().poll() is not None or time.monotonic() > deadline:
                log = (self._folder / "log").read_text(errors="replace")
                raise RuntimeError(f"ministack did not start. Its log:\n{log}")
            try:
                with urllib.request.urlopen(  # noqa: S310 - of this process
                    f"{self.endpoint_url}/_ministack/health", timeout=_ANSWER_TIMEOUT_S
                ):
                    return
            except OSError:
                time.sleep(_POLL_S)


def install() -> Path:
    """The Python of its environment, which is built when the lock has changed."""
    python = _INSTALLED / "venv" / "bin" / "python"
    with installing_into(_INSTALLED):
        done, wanted = _INSTALLED / "installed.txt", _LOCK.read_bytes()
        if not done.exists() or done.read_bytes() != wanted:
            done.unlink(missing_ok=True)
            shutil.rmtree(_INSTALLED / "venv", ignore_errors=True)
            _uv("venv", "--python", sys.executable, str(_INSTALLED / "venv"))
            _uv("pip", "install", "--python", str(python), "--require-hashes", "-r", str(_LOCK))
            done.write_bytes(wanted)
    return python


def _uv(*arguments: str) -> None:
    command = [sys.executable, "-m", "uv", *arguments]
    # Outside of the checkout, whose constraints uv would apply.
    outside = tempfile.gettempdir()
    found = subprocess.run(command, cwd=outside, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{found.stdout}{found.stderr}")
