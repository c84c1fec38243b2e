"""The embedded Kinesis in a separate process, which puts records and counts its calls. Its
processor time is thus measured apart from the driver's."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

import psutil

from embedded_kinesis import EmbeddedKinesis, Limits

STREAM: Final = "bench"
RECORD_BYTES: Final = 200
KEYS: Final = 5_000
_ANSWER_S: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceProcess:
    """That process, from outside. Not thread-safe."""

    url: str
    _pipe: Connection
    _process: BaseProcess

    def options(self) -> dict[str, str]:
        """Return the options of a query that reads the stream from its beginning."""
        return {
            "streamName": STREAM,
            "endpointUrl": self.url,
            "region": "us-east-1",
            "awsAccessKeyId": "local",
            "awsSecretAccessKey": "local",
            "startingPosition": "trim_horizon",
        }

    def produce(self, rate: int) -> None:
        """Put `rate` records a second from now on, 20 ms apart at most."""
        self._ask("produce", rate)

    def calls(self) -> dict[str, int]:
        """Return the number of calls so far, by operation."""
        answer: dict[str, int] = self._ask("calls", None)
        return answer

    def cpu_seconds(self) -> float:
        """Return the processor time of the service's process so far."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def _ask(self, word: str, value: int | None) -> Any:
        self._pipe.send((word, value))
        if not self._pipe.poll(_ANSWER_S):
            raise TimeoutError("the service's process does not answer")
        return self._pipe.recv()


def _serve(shards: int, size: int, limits: Limits, pipe: Connection) -> None:
    rate = 0
    begun = time.monotonic()
    done = 0
    changed = threading.Lock()
    stop = threading.Event()

    def put() -> None:
        nonlocal done
        body = b"x" * size
        while not stop.wait(0.02):
            with changed:
                due = int((time.monotonic() - begun) * rate)
                for number in range(done, due):
                    kinesis.state.put(STREAM, partition_key=f"key-{number % KEYS}", data=body)
                done = max(done, due)

    with EmbeddedKinesis(limits=limits) as kinesis:
        kinesis.state.create_stream(STREAM, shards=shards)
        thread = threading.Thread(target=put, daemon=True)
        thread.start()
        pipe.send(kinesis.client_settings()["endpoint_url"])
        while True:
            try:
                word, value = pipe.recv()
            except EOFError:
                break
            if word == "produce":
                with changed:
                    rate, begun, done = value, time.monotonic(), 0
                pipe.send(None)
            else:
                pipe.send(kinesis.state.calls.by_operation())
        stop.set()
        thread.join()


@contextmanager
def kinesis_service(
    shards: int, *, size: int = RECORD_BYTES, limits: Limits | None = None
) -> Iterator[ServiceProcess]:
    """A service with one stream and, by default, no limits, within the block. It puts records of
    `size` bytes."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (shards, size, limits or Limits(), theirs)
    process = context.Process(target=_serve, args=arguments, daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_ANSWER_S):
            raise RuntimeError("the service did not start")
        yield ServiceProcess(url=ours.recv(), _pipe=ours, _process=process)
    finally:
        ours.close()
        process.join(_ANSWER_S)
        if process.is_alive():
            process.kill()
            process.join()
