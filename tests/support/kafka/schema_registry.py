"""Apicurio Registry, which serves the API of Confluent's Schema Registry, for tests and rehearsals.
Its archive (142 MB) is fetched and unpacked on first use. A shell ends it together with the process
that started it."""

from __future__ import annotations

import os
import shutil
import tarfile
from contextlib import ExitStack
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

from spark_ssp.testing.kafka.broker import free_ports
from spark_ssp.testing.kafka.jars import Bundle, cache_folder, fetch, installing_into, java
from tests.support.servers.cache import checksums
from tests.support.servers.process import FIRST_COMPILER_ALONE, LoggedProcess

_BUNDLE: Final = Bundle(
    name="apicurio",
    version="2.6.13",
    modules=checksums("apicurio-2.6.13.xml"),
    checksums=checksums("apicurio-2.6.13.sha256"),
)
_HOST: Final = "127.0.0.1"
_START_S: Final = 120
_END_S: Final = 30
_UNTIL_INPUT_ENDS: Final = '"$@" </dev/null & cat >/dev/null; kill -KILL $!'


class SchemaRegistry(LoggedProcess):
    """A context manager: a registry at `url`, empty, in memory."""

    def __init__(self) -> None:
        super().__init__("Apicurio Registry", patience_s=_END_S)
        self._port = 0

    @property
    def url(self) -> str:
        """The address for clients of Confluent's Schema Registry."""
        self._running()
        return f"http://{_HOST}:{self._port}/apis/ccompat/v7"

    def _start(self, resources: ExitStack) -> None:
        (runner,) = install().glob("*-runner.jar")
        (self._port,) = free_ports(_HOST, 1)
        self._make_folder(resources)
        program = [
            java(),
            "-Xmx512m",
            "-XX:+UseSerialGC",
            FIRST_COMPILER_ALONE,
            "-jar",
            str(runner),
        ]
        address = {"QUARKUS_HTTP_HOST": _HOST, "QUARKUS_HTTP_PORT": str(self._port)}
        self._launch(
            ["/bin/sh", "-c", _UNTIL_INPUT_ENDS, "sh", *program], os.environ | address, resources
        )
        self._wait_until(self._serves, "start", _START_S)

    def _serves(self) -> bool:
        connection = HTTPConnection(_HOST, self._port, timeout=_END_S)
        try:
            connection.request("GET", "/apis/ccompat/v7/subjects")
            return connection.getresponse().status == HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()


def install() -> Path:
    """Return the folder of the unpacked archive."""
    (archive,) = fetch(_BUNDLE).iterdir()
    cache = cache_folder() / "apicurio"
    folder = cache / _BUNDLE.version
    with installing_into(cache):
        if not folder.exists():
            fresh = cache / f"{_BUNDLE.version}.part"
            shutil.rmtree(fresh, ignore_errors=True)
            with tarfile.open(archive) as content:
                content.extractall(fresh, filter="data")
            fresh.rename(folder)
    return folder


if __name__ == "__main__":
    with SchemaRegistry() as registry:
        print(registry.url, flush=True)
        input()
