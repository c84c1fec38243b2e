"""A Kafka cluster of several brokers, each in its own JVM, every one a controller too (KRaft)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

from spark_ssp.testing.kafka.broker import LOOPBACK, LocalKafka, free_ports

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


class LocalKafkaCluster:
    """A context manager: `brokers` brokers, numbered from 1, of which each can be killed, frozen
    and started again at the same address with the same data.

    Topics have up to three replicas, and internal ones need two that are in sync. `settings` are
    added to those of each broker.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        settings: Mapping[str, str] | None = None,
        host: str = LOOPBACK,
        java_options: tuple[str, ...] = (),
    ) -> None:
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
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as resources:
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
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._resources.close()

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
        """Stop a broker in order: it hands over its partitions first."""
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
