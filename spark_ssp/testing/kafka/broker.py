"""Apache Kafka (KRaft), one broker or several, each in a separate JVM.

The JVM is started through py4j (as PySpark does), so that it ends when its standard input does,
with this process; the broker is formatted and started in it, on ports that stay the same when
it is started again. In a cluster every broker is a controller too.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final, Self

from py4j.java_gateway import GatewayParameters, JavaGateway

from spark_ssp.testing.kafka.jars import Artifact, fetch, java, spark_jar

_ARTIFACT: Final = Artifact(
    organisation="org.apache.kafka",
    name="kafka_2.13",
    version="4.3.1",
    checksums=Path(__file__).with_name("kafka-4.3.1.sha256"),
)
LOOPBACK: Final = "127.0.0.1"
_END_S: Final = 30
_ANSWER_S: Final = 30
_CLUSTER_ID: Final = "c3BhcmstcXVlcnktdGVzdA"

_SETTINGS: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # How soon a broker that was killed is let in again.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # No reader waits for the heartbeat records of an idle quorum.
    "metadata.max.idle.interval.ms": "0",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "num.network.threads": "2",
    "num.io.threads": "2",
}


class LocalServer(ABC):
    """A context manager over a server of several parts, which are ended in reverse."""

    def __init__(self) -> None:
        self._resources = ExitStack()

    @abstractmethod
    def _start(self, resources: ExitStack) -> None:
        """Start all, until it serves; `resources` are closed at the end, or if this fails."""

    def __enter__(self) -> Self:
        with ExitStack() as resources:
            self._start(resources)
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()


class LocalKafka(LocalServer):
    """A context manager: a broker at `bootstrap_servers`, empty; nothing is kept after the block.

    `settings` are added to the broker's. `listeners` are further ones beside PLAINTEXT by their
    security protocol; `address(protocol)` returns the address of each. `port` 0 is any free one;
    `ports` are those of all listeners, by protocol, the controller's among them as CONTROLLER.
    `host` is the address to listen on and to advertise; every program that reaches it can read and
    write.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        listeners: tuple[str, ...] = (),
        port: int = 0,
        host: str = LOOPBACK,
        ports: Mapping[str, int] | None = None,
        java_options: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self._settings = dict(settings or {})
        self._protocols = ("PLAINTEXT", *listeners, "CONTROLLER")
        self._port = port
        self._host = host
        self._java_options = java_options
        self._ports = dict(ports or {})
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._gateway: Any = None
        self._server: Any = None

    @property
    def bootstrap_servers(self) -> str:
        """The address of the listener without encryption."""
        return self.address("PLAINTEXT")

    @property
    def options(self) -> dict[str, str]:
        """The options of a query that reads from this broker."""
        return {"kafka.bootstrap.servers": self.bootstrap_servers}

    def address(self, protocol: str) -> str:
        """Return the address of the listener of a security protocol."""
        return f"{self._host}:{self._ports[protocol]}"

    @property
    def pid(self) -> int:
        """The id of the broker's Java process."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """True if the broker is started and its Java process has not ended by itself."""
        return self._server is not None and self._running().poll() is None

    @property
    def log(self) -> str:
        """The errors that the broker has logged."""
        files = (self._folder / name for name in ("server.log", "java.log"))
        return "".join(file.read_text(errors="replace") for file in files if file.exists())

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic. Raises confluent_kafka.KafkaException, as for one that exists."""
        from confluent_kafka.admin import AdminClient  # noqa: TID251  (its requests end before it)
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        new = NewTopic(name, num_partitions=partitions, config=dict(config or {}))
        for future in admin.create_topics([new]).values():
            future.result(_ANSWER_S)
        wait_for_partitions(admin, name, partitions)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Increase the number of partitions of a topic."""
        from confluent_kafka.admin import AdminClient  # noqa: TID251  (its requests end before it)
        from confluent_kafka.cimpl import NewPartitions

        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        for future in admin.create_partitions([NewPartitions(topic, partitions)]).values():
            future.result(_ANSWER_S)
        wait_for_partitions(admin, topic, partitions)

    def stop(self) -> None:
        """Stop in order; `start_again` continues with the same data at the same address."""
        if self._server is not None:
            self._server.shutdown()
            self._server.awaitShutdown()
            self._server = None

    def kill(self) -> None:
        """Kill the broker, as a power failure does; `start_again` continues with the same data."""
        process = self._running()
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
        if self._gateway is not None:
            self._gateway.close()
        self._gateway = self._server = None

    def start_again(self) -> None:
        """Start the broker after `stop` or `kill`, with the same data at the same address."""
        if self._gateway is None:
            self._launch()
        self._serve()

    def _start(self, resources: ExitStack) -> None:
        self._folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="kafka-")))
        if not self._ports:
            ports = free_ports(self._host, len(self._protocols))
            self._ports = dict(zip(self._protocols, ports, strict=True))
        if self._port:
            _check_free(self._host, self._port)
            self._ports["PLAINTEXT"] = self._port
        self._write_settings()
        resources.callback(self._end)
        self._launch()
        resources.callback(self._close)
        self._format()
        self._serve()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("Kafka is not running")
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _launch(self) -> None:
        log4j = self._folder / "log4j2.properties"
        log4j.write_text(
            "status = OFF\nrootLogger.level = ERROR\nrootLogger.appenderRef.file.ref = FILE\n"
            f"appender.file.type = File\nappender.file.name = FILE\n"
            f"appender.file.fileName = {self._folder}/server.log\n"
            "appender.file.layout.type = PatternLayout\n"
        )
        class_path = os.pathsep.join([str(spark_jar("py4j-*.jar")), f"{install()}{os.sep}*"])
        command = [java(), "-classpath", class_path]
        command += [f"-Dlog4j2.configurationFile={log4j}", "-Xmx512m", "-XX:+UseSerialGC"]
        command += [*self._java_options, "py4j.GatewayServer"]
        command += ["--die-on-broken-pipe", "--enable-auth", "0"]
        errors = self._folder / "java.log"
        with errors.open("wb") as file:
            # py4j's `launch_gateway` makes a process group by `preexec_fn`, whose fork closes the
            # connections of this process to other JVMs, such as Spark's: the thread then has no
            # active session, and a batch write finds no data source.
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                # Ctrl-C is for this process, which then ends the broker in an orderly way.
                process_group=0,
            )
        self._process = process
        assert process.stdout is not None
        port, token = (process.stdout.readline().decode().strip() for _ in range(2))
        if not token:
            raise RuntimeError(f"Java did not start: {errors.read_text(errors='replace')}")
        threading.Thread(target=_drain, args=(process.stdout,), daemon=True).start()
        self._gateway = JavaGateway(
            # Objects are not released one by one: the JVM may have ended.
            gateway_parameters=GatewayParameters(
                port=int(port), auth_token=token, enable_memory_management=False
            )
        )

    def _close(self) -> None:
        if self._gateway is None:
            return
        self.stop()
        self._gateway.shutdown()
        self._gateway = None

    def _write_settings(self) -> None:
        listeners = [f"{name}://{self.address(name)}" for name in self._protocols]
        protocols = [
            f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in self._protocols
        ]
        settings = {
            **_SETTINGS,
            "log.dirs": str(self._folder / "data"),
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(listeners[:-1]),
            "listener.security.protocol.map": ",".join(protocols),
            "controller.quorum.voters": f"1@{self.address('CONTROLLER')}",
            **self._settings,
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        self._properties.write_text(text)

    @property
    def _properties(self) -> Path:
        return self._folder / "server.properties"

    def _format(self) -> None:
        jvm = self._gateway.jvm
        arguments = _strings(
            self._gateway, "format", "-t", _CLUSTER_ID, "-c", str(self._properties)
        )
        said = jvm.java.io.ByteArrayOutputStream()
        status = jvm.kafka.tools.StorageTool.execute(arguments, jvm.java.io.PrintStream(said))
        if status != 0:
            raise RuntimeError(f"formatting Kafka's folder failed:\n{said.toString()}")

    def _serve(self) -> None:
        """Returns when the broker answers."""
        jvm = self._gateway.jvm
        settings = jvm.org.apache.kafka.common.utils.Utils.loadProps(str(self._properties))
        clock = jvm.org.apache.kafka.common.utils.Time.SYSTEM
        self._server = jvm.kafka.server.KafkaRaftServer(
            jvm.kafka.server.KafkaConfig.fromProps(settings), clock
        )
        self._server.startup()


def wait_for_partitions(
    admin: Any, topic: str, partitions: int, *, within_s: float = _ANSWER_S
) -> None:
    """Wait until the broker reports this number of partitions (0: no such topic): its controller
    answers before the broker has the change. Raises TimeoutError."""
    deadline = time.monotonic() + within_s
    while _partition_count(admin, topic, within_s) != partitions:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not {partitions} partitions of {topic} within {within_s:g} s")
        time.sleep(0.02)


def _partition_count(admin: Any, topic: str, within_s: float) -> int:
    """Return the partition count that the broker reports. Listing the topic could create it."""
    from confluent_kafka import KafkaError, KafkaException, TopicCollection

    future = admin.describe_topics(TopicCollection([topic]))[topic]
    try:
        return len(future.result(within_s).partitions)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return 0
        raise


def _strings(gateway: Any, *texts: str) -> Any:
    array = gateway.new_array(gateway.jvm.String, len(texts))
    for index, text in enumerate(texts):
        array[index] = text
    return array


def _drain(output: IO[bytes]) -> None:
    """Read the output of a JVM to its end, so that the JVM never waits for a reader."""
    with output:
        for _ in output:
            pass


def free_ports(host: str, count: int) -> list[int]:
    """Return ports below those that the system gives to other programs and to outgoing connections:
    one might take a port while its server is restarted, and receive the requests for it. Raises
    OSError if `host` is no address of this machine."""
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise OSError(
                f"host {host} is not available ({error}); expected an IPv4 address of this "
                "machine, or a name of one, such as 127.0.0.1"
            ) from error
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def _check_free(host: str, port: int) -> None:
    """Raise OSError if the port is in use, which the broker would report later and less plainly."""
    with socket.socket() as probe:
        # As the broker does, whose last connections may still be ending.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            raise OSError(
                f"port {port} of {host} is not available ({error}); expected a free port: stop "
                "its owner, or choose another port, 0 for any"
            ) from error


def install() -> Path:
    """The folder with its jars."""
    return fetch(_ARTIFACT)


# --- Several brokers ------------------------------------------------------------------------------


_QUORUM: Final[Mapping[str, str]] = {
    # The time after which others take over from a broker that was killed: less than Kafka's 9 s,
    # and more than the pauses of live brokers on a busy machine.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    "controlled.shutdown.enable": "true",
    # Followers leave the in-sync replicas, and rejoin them, soon.
    "replica.lag.time.max.ms": "4000",
    "num.replica.fetchers": "1",
    "background.threads": "2",
    "log.cleaner.enable": "false",
    # The time for which brokers wait for a suspended controller, less than the 30 s of Kafka.
    "controller.socket.timeout.ms": "5000",
}


class LocalKafkaCluster(LocalServer):
    """A context manager: `brokers` brokers, numbered from 1, of which each can be killed, frozen
    and started again at the same address with the same data. Topics have up to three replicas, and
    internal ones need two that are in sync. `settings` are added to those of each broker."""

    def __init__(
        self,
        brokers: int = 3,
        *,
        settings: Mapping[str, str] | None = None,
        host: str = LOOPBACK,
        java_options: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        replicas, in_sync = str(min(3, brokers)), str(min(2, brokers))
        self._settings = {
            **_QUORUM,
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
            **(settings or {}),
        }
        self._host = host
        self._java_options = ("-Xmx256m", *java_options)
        self._numbers = range(1, brokers + 1)
        self._brokers: dict[int, LocalKafka] = {}
        self._frozen: set[int] = set()

    def _start(self, resources: ExitStack) -> None:
        ports = free_ports(self._host, 2 * len(self._numbers))
        voters = ",".join(
            f"{number}@{self._host}:{port}"
            for number, port in zip(self._numbers, ports[1::2], strict=True)
        )
        for number in self._numbers:
            plaintext, controller = ports[2 * number - 2 : 2 * number]
            self._brokers[number] = LocalKafka(
                settings={
                    **self._settings,
                    "node.id": str(number),
                    "controller.quorum.voters": voters,
                },
                ports={"PLAINTEXT": plaintext, "CONTROLLER": controller},
                host=self._host,
                java_options=self._java_options,
            )
        resources.callback(self._end)
        self._together(LocalKafka.__enter__, self._numbers)

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of the brokers."""
        return self._numbers

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers."""
        return ",".join(broker.bootstrap_servers for broker in self._brokers.values())

    @property
    def options(self) -> dict[str, str]:
        """The options of a query that reads from this cluster."""
        return {"kafka.bootstrap.servers": self.bootstrap_servers}

    def address(self, number: int) -> str:
        """Return the address of a broker."""
        return self._brokers[number].bootstrap_servers

    def kill(self, number: int) -> None:
        """Kill a broker (SIGKILL)."""
        self.thaw(number)
        self._brokers[number].kill()

    def stop(self, number: int) -> None:
        """Stop a broker in order, after a `thaw`: it hands over its partitions first."""
        self.thaw(number)
        self._brokers[number].stop()

    def start_again(self, number: int) -> None:
        """Start a broker after `kill` or `stop`. Returns when the others have let it in."""
        self._brokers[number].start_again()

    def freeze(self, number: int) -> None:
        """Suspend a broker (SIGSTOP): its connections stay open, and nothing is answered."""
        os.kill(self._brokers[number].pid, signal.SIGSTOP)
        self._frozen.add(number)

    def thaw(self, number: int) -> None:
        """Continue a broker after `freeze`; without effect on others."""
        if number in self._frozen:
            self._frozen.remove(number)
            os.kill(self._brokers[number].pid, signal.SIGCONT)

    def _together(self, action: Callable[[LocalKafka], object], numbers: Sequence[int]) -> None:
        with ThreadPoolExecutor(len(numbers)) as threads:
            for done in [threads.submit(action, self._brokers[number]) for number in numbers]:
                done.result()

    def _end(self) -> None:
        """Kill all brokers: without a quorum, the last ones could not stop in order."""
        for number, broker in self._brokers.items():
            if broker.is_running:
                self.kill(number)
            broker.__exit__(None, None, None)
