"""ministack, an independent emulator of AWS whose Kinesis has SubscribeToShard, for tests. It is
installed on first use into the checkout's `.cache/`, in an environment of its own, since it
requires one version of botocore. It serves HTTP/1.1, and HTTP/2 with TLS."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from spark_ssp.testing.kinesis.server import LOOPBACK, listen
from tests.support.kinesis.certificates import write_certificates
from tests.support.servers.cache import CACHE, checksums, install_locked, run
from tests.support.servers.process import KinesisEmulator

_LOCK: Final = checksums("ministack.txt")
_INSTALLED: Final = CACHE / "ministack"
_PYTHON: Final = _INSTALLED / "venv" / "bin" / "python"
_ANSWER_TIMEOUT_S: Final = 60
# The process ends when its standard input does.
_PROGRAM: Final = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
from hypercorn.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


class Ministack(KinesisEmulator):
    """A context manager: ministack at `endpoint_url` and, with TLS, at `secure_url`, whose
    certificate is of the authority in the file `authority`."""

    def __init__(self) -> None:
        super().__init__("ministack", patience_s=10)
        self._ports: list[int] = []

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

    def _start(self, resources: ExitStack) -> None:
        install()
        self._make_folder(resources)
        write_certificates(self._folder, "server")
        pem = str(self._folder / "server.pem")
        plain, secure = (resources.enter_context(listen(0, LOOPBACK)) for _ in range(2))
        self._ports = [each.getsockname()[1] for each in (plain, secure)]
        # Without workers it serves in the process that is ended.
        arguments = ["--workers", "0", "--certfile", pem, "--keyfile", pem]
        arguments += ["--bind", f"fd://{secure.fileno()}"]
        arguments += ["--insecure-bind", f"fd://{plain.fileno()}", "ministack.app:app"]
        environment = {"PATH": os.environ["PATH"], "TMPDIR": str(self._folder)}
        self._launch(
            [_PYTHON, "-c", _PROGRAM, *arguments],
            environment | {"HOME": str(self._folder), "LOG_LEVEL": "WARNING"},
            resources,
            cwd=self._folder,
            pass_fds=(plain.fileno(), secure.fileno()),
        )
        self._wait_until(self._answers, "start", _ANSWER_TIMEOUT_S)

    def _answers(self) -> bool:
        health = f"{self.endpoint_url}/_ministack/health"
        try:
            with urllib.request.urlopen(health, timeout=_ANSWER_TIMEOUT_S):  # noqa: S310 - of this process
                return True
        except OSError:
            return False


def install() -> None:
    """Build its environment when the lock has changed."""
    install_locked(_INSTALLED, _LOCK, _install)


def _install() -> None:
    shutil.rmtree(_INSTALLED / "venv", ignore_errors=True)
    _uv("venv", "--python", sys.executable, str(_INSTALLED / "venv"))
    _uv("pip", "install", "--python", str(_PYTHON), "--require-hashes", "-r", str(_LOCK))


def _uv(*arguments: str) -> None:
    # Outside of the checkout, whose constraints uv would apply.
    run([sys.executable, "-m", "uv", *arguments], cwd=tempfile.gettempdir())
