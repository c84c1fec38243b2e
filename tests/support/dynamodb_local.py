"""DynamoDB Local, Amazon's own emulator, for tests.

It has no option for the address to listen on and would listen on all. So a JVM is started through
py4j (as PySpark does) with the emulator on its class path; the server is made as its `main` would,
and before it starts its connector is told to listen on 127.0.0.1, on a free port. The JVM ends when
its standard input does, so with this process.
"""

from __future__ import annotations

import os
import subprocess
from collections import deque
from types import TracebackType
from typing import Any, Final, Self

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from tests.support.maven import Artifact, fetch, java, spark_jar

_ARTIFACT: Final = Artifact(
    organisation="com.amazonaws",
    name="DynamoDBLocal",
    version="2.6.1",
    checksums="dynamodb-local.sha256",
)
_MAIN: Final = "com.amazonaws.services.dynamodbv2.local.main.ServerRunner"
_ARGUMENTS: Final = ("-inMemory", "-disableTelemetry")
_HOST: Final = "127.0.0.1"
_END_S: Final = 30


class DynamoDbLocal:
    """A context manager: DynamoDB Local at `endpoint_url`, empty."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._gateway: Any = None
        self._server: Any = None
        self._port = 0

    @property
    def endpoint_url(self) -> str:
        if self._server is None:
            raise RuntimeError("DynamoDB Local is not running")
        return f"http://{_HOST}:{self._port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("DynamoDB Local is not running")
        return self._process.pid

    def __enter__(self) -> Self:
        folder = fetch(_ARTIFACT)
        port, token, self._process = launch_gateway(
            jarpath=str(spark_jar("py4j-*.jar")),
            classpath=f"{folder}{os.sep}*",
            java_path=java(),
            javaopts=[f"-Dsqlite4java.library.path={folder}", "-Xmx512m"],
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
            # py4j's threads empty the pipes into these until the JVM ends.
            redirect_stdout=deque(maxlen=100),
            redirect_stderr=deque(maxlen=100),
            daemonize_redirect=True,
        )
        try:
            self._gateway = JavaGateway(
                gateway_parameters=GatewayParameters(port=port, auth_token=token)
            )
            self._serve()
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

    def _serve(self) -> None:
        jvm = self._gateway.jvm
        arguments = self._gateway.new_array(jvm.String, len(_ARGUMENTS))
        for index, argument in enumerate(_ARGUMENTS):
            arguments[index] = argument
        runner = jvm
        for name in _MAIN.split("."):
            runner = getattr(runner, name)
        server = runner.createServerFromCommandLineArgs(arguments)
        field = server.getClass().getDeclaredField("server")
        field.setAccessible(True)
        (connector,) = field.get(server).getConnectors()
        connector.setHost(_HOST)
        connector.setPort(0)
        server.start()
        self._port = connector.getLocalPort()
        self._server = server

    def _stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None
        if self._gateway is not None:
            self._gateway.shutdown()
            self._gateway = None
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(timeout=_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
