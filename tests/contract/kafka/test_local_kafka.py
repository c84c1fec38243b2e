"""The Kafka on this machine from the command line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from spark_ssp.kafka_source.client.admin_connection import AdminClient
from spark_ssp.testing.kafka import LocalKafka
from tests.architecture.layers import ROOT


def test_a_broker_is_started_printed_and_stopped() -> None:
    command = [
        sys.executable,
        "-m",
        "spark_ssp.testing.kafka",
        "--port",
        "0",
        "--topic",
        "orders:3",
    ]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line.strip())
            if line.startswith("Ctrl-C"):
                break
        address = next(line for line in said if line.startswith("Kafka is at ")).split()[-1]
        admin = AdminClient({"bootstrap.servers": address})
        topics = admin.list_topics(timeout=30).topics
        assert {name: len(topic.partitions) for name, topic in topics.items()} == {"orders": 3}
        assert f'.option("kafka.bootstrap.servers", "{address}")' in said
        # As Ctrl-C in a terminal, which all processes there hear.
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_broker_is_started_without_python_in_a_fork_and_a_killed_one_is_not_running() -> None:
    """Such a fork closes the connections of this process to other JVMs, such as Spark's."""
    forks = []
    os.register_at_fork(before=lambda: forks.append("fork"))
    with LocalKafka() as broker:
        assert forks == []
        running = [broker.is_running]
        os.kill(broker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, broker.pid, os.WEXITED | os.WNOWAIT)
        running.append(broker.is_running)
        assert running == [True, False]
        broker.kill()
    # What the test counts.
    subprocess.run([sys.executable, "-c", ""], check=True, preexec_fn=os.setpgrp)
    assert forks == ["fork"]


@pytest.mark.parametrize("topic", ["orders:0", "a b", "orders:many", "", ".", "..:2"])
def test_a_topic_that_cannot_be_is_refused_before_anything_starts(topic: str) -> None:
    command = [sys.executable, "-m", "spark_ssp.testing.kafka", "--topic", topic]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert "expected NAME or NAME:PARTITIONS" in result.stderr
    assert result.stdout == ""


def test_a_topic_that_is_given_twice_is_refused() -> None:
    command = [
        sys.executable,
        "-m",
        "spark_ssp.testing.kafka",
        "--topic",
        "orders:2",
        "--topic",
        "orders",
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert "found orders twice" in result.stderr


@pytest.mark.parametrize("taken", [True, False])
def test_a_port_that_cannot_be_had_is_named(taken: bool) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1] if taken else 70_000
        command = [sys.executable, "-m", "spark_ssp.testing.kafka", "--port", str(port)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith(f"cannot start: port {port} of 127.0.0.1 is not available")
    assert "Traceback" not in result.stderr
