"""DynamoDB Local, Amazon's own emulator, for tests.

It has no option for the address to listen on and would listen on all. So a JVM is started through
py4j (as PySpark does) with the emulator on its class path; the server is made as its `main` would,
and before it starts, its connector is set to listen on 127.0.0.1, on a free port. The JVM ends with
its standard input, thus with this process.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from spark_ssp.testing.kafka.jars import Artifact, fetch, java, spark_jar
from tests.support.servers.cache import checksums
from tests.support.servers.process import FIRST_COMPILER_ALONE, ServerProcess

_ARTIFACT: Final = Artifact(
    organisation="com.amazonaws",
    name="DynamoDBLocal",
    version="2.6.1",
    checksums=checksums("dynamodb-local.sha256"),
)
_MAIN: Final = "com.amazonaws.services.dynamodbv2.local.main.ServerRunner"
_ARGUMENTS: Final = ("-inMemory", "-disableTelemetry")
_HOST: Final = "127.0.0.1"
_END_S: Final = 30


class DynamoDbLocal(ServerProcess):
    """A context manager: DynamoDB Local at `endpoint_url`, empty."""

    def __init__(self) -> None:
        super().__init__("DynamoDB Local", patience_s=_END_S)
        self._port = 0

    @property
    def endpoint_url(self) -> str:
        self._running()
        return f"http://{_HOST}:{self._port}"

    def _start(self, resources: ExitStack) -> None:
        folder = install()
        port, token, process = launch_gateway(
            jarpath=str(spark_jar("py4j-*.jar")),
            classpath=f"{folder}{os.sep}*",
            java_path=java(),
            javaopts=[
                f"-Dsqlite4java.library.path={folder}",
                "-Xmx512m",
                "-XX:+UseSerialGC",
                FIRST_COMPILER_ALONE,
            ],
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
            # py4j's threads empty the pipes into these until the JVM ends.
            redirect_stdout=deque(maxlen=100),
            redirect_stderr=deque(maxlen=100),
            daemonize_redirect=True,
        )
        self._own(process, resources)
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
        resources.callback(gateway.shutdown)
        resources.callback(self._serve(gateway).stop)

    def _serve(self, gateway: Any) -> Any:
        """The server, which serves."""
        jvm = gateway.jvm
        arguments = gateway.new_array(jvm.String, len(_ARGUMENTS))
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
        return server


def install() -> Path:
    """The folder with its jars."""
    return fetch(_ARTIFACT)
