"""Services in a separate process, whose processor time is thus measured apart from the driver's;
and one of them, the embedded Kinesis, which puts records and counts its calls."""

from __future__ import annotations

import asyncio
import multiprocessing
import queue
import threading
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final
from urllib.parse import urlsplit

import psutil

from spark_ssp.testing.kinesis import EmbeddedKinesis, Limits

STREAM: Final = "bench"
RECORD_BYTES: Final = 200
KEYS: Final = 50_000
"""Of 10,000 shards one of 150 gets no record."""
NUMBER_BYTES: Final = 12
"""The digits with which a record begins."""
_ANSWER_S: Final = 60
_MOST_AT_ONCE: Final = 1 << 16
"""Bytes that the relay reads at once: more than any request here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyService:
    """The process of a service, from outside. Not thread-safe."""

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

    def calls(self) -> dict[str, int]:
        """Return the number of calls so far, by operation."""
        answer: dict[str, int] = self._ask("calls", None)
        return answer

    def cpu_seconds(self) -> float:
        """Return the processor time of the service's process so far."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def _ask(self, word: str, value: object) -> Any:
        self._pipe.send((word, value))
        if not self._pipe.poll(_ANSWER_S):
            raise TimeoutError("the service's process does not answer")
        return self._pipe.recv()


@contextmanager
def service_process(
    serve: Callable[..., None], *arguments: object
) -> Iterator[tuple[str, Connection, BaseProcess]]:
    """The address, the pipe and the process of a service within the block. `serve` is called in the
    process with these arguments and a pipe, into which it puts the address, and then an answer to
    each question of `AnyService`, until the pipe is closed."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_ANSWER_S):
            raise RuntimeError("the service did not start")
        yield ours.recv(), ours, process
    finally:
        ours.close()
        process.join(_ANSWER_S)
        if process.is_alive():
            process.kill()
            process.join()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceProcess(AnyService):
    """The embedded Kinesis."""

    def produce(self, rate: int, *, most: int | None = None) -> None:
        """Put `rate` records a second from now on, 20 ms apart at most, and `most` in all. Each
        begins with its number, from 0 on, in `NUMBER_BYTES` digits; the keys follow in turn."""
        self._ask("produce", (rate, most))

    def produced(self) -> int:
        """Return the number of records put since the last `produce`."""
        count: int = self._ask("produced", None)
        return count


@contextmanager
def _delayed(url: str, latency_s: float) -> Iterator[str]:
    """The address of a relay within the block, which holds up each request for `latency_s`."""
    address = urlsplit(url)
    ready: queue.SimpleQueue[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]]
    ready = queue.SimpleQueue()

    async def pass_on(reader: StreamReader, writer: StreamWriter, delay_s: float) -> None:
        with suppress(ConnectionError):  # either side may close a connection
            while data := await reader.read(_MOST_AT_ONCE):
                await asyncio.sleep(delay_s)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connect(reader: StreamReader, writer: StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(address.hostname, address.port)
        with suppress(asyncio.CancelledError):  # the relay ends before all are closed
            await asyncio.gather(pass_on(reader, requests, latency_s), pass_on(answers, writer, 0))

    async def relay() -> None:
        server = await asyncio.start_server(connect, "127.0.0.1", 0)
        stop = asyncio.Event()
        port = server.sockets[0].getsockname()[1]
        ready.put((f"http://127.0.0.1:{port}", asyncio.get_running_loop(), stop))
        await stop.wait()
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(relay(),))
    thread.start()
    there, loop, stop = ready.get()
    try:
        yield there
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def _serve(shards: int, size: int, limits: Limits, latency_s: float, pipe: Connection) -> None:
    rate = 0
    most: int | None = None
    begun = time.monotonic()
    done = 0
    changed = threading.Lock()
    stop = threading.Event()

    def put() -> None:
        nonlocal done
        rest = b"x" * (size - NUMBER_BYTES)
        while not stop.wait(0.02):
            with changed:
                due = int((time.monotonic() - begun) * rate)
                due = due if most is None else min(due, most)
                for number in range(done, due):
                    data = b"%0*d" % (NUMBER_BYTES, number) + rest
                    kinesis.state.put(STREAM, partition_key=f"key-{number % KEYS}", data=data)
                done = max(done, due)

    with EmbeddedKinesis(limits=limits) as kinesis:
        kinesis.state.create_stream(STREAM, shards=shards)
        thread = threading.Thread(target=put, daemon=True)
        thread.start()
        url = kinesis.endpoint_url
        with _delayed(url, latency_s) if latency_s else nullcontext(url) as address:
            pipe.send(address)
            while True:
                try:
                    word, value = pipe.recv()
                except EOFError:
                    break
                answer: object = None
                match word:
                    case "produce":
                        with changed:
                            (rate, most), begun, done = value, time.monotonic(), 0
                    case "produced":
                        answer = done
                    case _:
                        answer = kinesis.state.calls.by_operation()
                pipe.send(answer)
        stop.set()
        thread.join()


@contextmanager
def kinesis_service(
    shards: int,
    *,
    size: int = RECORD_BYTES,
    limits: Limits | None = None,
    latency_s: float = 0.0,
) -> Iterator[ServiceProcess]:
    """A service with one stream and, by default, no limits, within the block. It puts records of
    `size` bytes. Each call takes `latency_s` longer."""
    arguments = (shards, size, limits or Limits(), latency_s)
    with service_process(_serve, *arguments) as (url, pipe, process):
        yield ServiceProcess(url=url, _pipe=pipe, _process=process)
