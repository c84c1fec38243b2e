"""The writer of the Kinesis sink behind an uplink that is slow, or breaks."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ReadTimeoutError
from urllib3.util import Timeout

from benchmarks.support.slow_link import SlowLink
from spark_ssp.common.aws.clients import create_client
from spark_ssp.common.aws.http_exchange import header_lines, post
from spark_ssp.common.aws.service_calls import RetrySettings
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis
from spark_ssp.kinesis_source.sink.writer import LearnedRates
from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.support.kinesis.sink_writer import batch, writer

_READ_TIMEOUT_S: Final = 1.0
_ROW: Final = 20_000


def client(url: str) -> Boto3Kinesis:
    options = ConnectionOptions(
        region="us-east-1",
        endpoint_url=url,
        aws_access_key_id="local",
        aws_secret_access_key="local",
        read_timeout_ms=int(_READ_TIMEOUT_S * 1_000),
    )
    retry = RetrySettings(max_attempts=4, max_backoff=0.01)
    return Boto3Kinesis(create_client("kinesis", options), retry=retry)


@pytest.fixture
def slow_link() -> Iterator[tuple[EmbeddedKinesis, SlowLink]]:
    """A link of 400 kB per second to a service without limits."""
    with EmbeddedKinesis() as kinesis:
        kinesis.state.create_stream("orders", shards=16)
        with SlowLink(urlsplit(kinesis.endpoint_url).port or 0, 400_000) as link:
            yield kinesis, link


@pytest.mark.parametrize("tasks", [1, 3])
def test_each_row_is_stored_once(slow_link: tuple[EmbeddedKinesis, SlowLink], tasks: int) -> None:
    """Although the rows need several times `readTimeout`, as does the first round of requests of a
    sink that sends as much as it may."""
    kinesis, link = slow_link
    rows = 150 // tasks
    clients = [client(link.url) for _ in range(tasks)]

    def write(task: int) -> None:
        names = [f"{task}-{number}" for number in range(rows)]
        data = [name.encode().ljust(20) + os.urandom(_ROW - 20) for name in names]
        writer(clients[task], delivery_timeout_ms=20_000).write([batch(data, names)])

    threads = [threading.Thread(target=write, args=(task,)) for task in range(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in clients:
        each.close()
    stored = Counter(one.data[:20] for one in kinesis.state.records("orders"))
    assert len(stored) == rows * tasks
    assert stored.total() <= 1.02 * rows * tasks


def test_the_next_task_begins_with_the_window_of_the_last(
    slow_link: tuple[EmbeddedKinesis, SlowLink],
) -> None:
    _, link = slow_link
    link.rate = 1e9
    connected, learned = client(link.url), LearnedRates()
    first = writer(connected)
    first.learned = learned
    begun = learned.window(first.options.connection)
    first.write([batch([os.urandom(_ROW)] * 200, [f"key-{n}" for n in range(200)])])
    connected.close()
    assert learned.window(first.options.connection).size > begun.size


# --- One exchange ---------------------------------------------------------------------------------


def certificate(folder: Path) -> Path:
    path = folder / "server.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    key = ["-newkey", "rsa:2048", "-nodes", "-keyout", str(path), "-out", str(folder / "cert.pem")]
    subprocess.run(
        ["openssl", "req", "-x509", *key, "-days", "2", *subject],
        check=True,
        capture_output=True,
    )
    path.write_text(path.read_text() + (folder / "cert.pem").read_text())
    return path


@contextmanager
def server(serve: Callable[[socket.socket], None], pem: Path | None) -> Iterator[int]:
    """A server of one connection, with small buffers."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 10)
    listener.bind(("127.0.0.1", 0))
    listener.listen()

    def run() -> None:
        connection, _ = listener.accept()
        if pem is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pem)
            connection = context.wrap_socket(connection, server_side=True)
        with connection:
            serve(connection)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        thread.join()
        listener.close()


def pool_of(port: int, pem: Path | None) -> HTTPConnectionPool:
    timeout = Timeout(connect=5, read=_READ_TIMEOUT_S)
    if pem is None:
        return HTTPConnectionPool("127.0.0.1", port, timeout=timeout)
    return HTTPSConnectionPool("127.0.0.1", port, timeout=timeout, ca_certs=str(pem))


@pytest.mark.parametrize("is_tls", [False, True])
def test_a_large_request_may_take_longer_than_the_read_timeout(
    tmp_path: Path, is_tls: bool
) -> None:
    """As long as its bytes leave: here in three times as long."""
    pem = certificate(tmp_path) if is_tls else None
    body, received = bytes(12 << 20), bytearray()

    def serve(connection: socket.socket) -> None:
        ends_at = time.monotonic() + 3 * _READ_TIMEOUT_S
        while (part := connection.recv(64 << 10)) and len(received) < len(body):
            received.extend(part)
            left = max(0.0, ends_at - time.monotonic())
            time.sleep(left * len(part) / (len(body) + 500 - len(received) + len(part)))
            if received.endswith(body[-1000:]) and len(received) > len(body):
                break
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with server(serve, pem) as port:
        pool = pool_of(port, pem)
        response = post(pool, header_lines({"Host": "localhost"}), body)
        pool.close()
    assert (response.status, response.body) == (200, b"{}")
    assert response.send_seconds > 2 * _READ_TIMEOUT_S


def test_a_request_that_times_out_is_not_sent_on() -> None:
    """Else the kernel sends what it has buffered, and the service carries the request out."""
    has_failed, body, rest = threading.Event(), bytes(200_000), bytearray()

    def serve(connection: socket.socket) -> None:
        connection.recv(1_000)
        has_failed.wait(30)
        with suppress(ConnectionResetError):
            while part := connection.recv(64 << 10):
                rest.extend(part)

    with server(serve, None) as port:
        pool = pool_of(port, None)
        with pytest.raises(ReadTimeoutError):
            post(pool, header_lines({"Host": "localhost"}), body)
        has_failed.set()
        pool.close()
    assert len(rest) < len(body)
