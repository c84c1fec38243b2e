"""A Kafka from the command line: `python -m spark_ssp.testing.kafka --topic orders:4`. Runs in the
foreground until Ctrl-C (or SIGTERM) and prints how to reach it."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import threading
from collections.abc import Sequence

from spark_ssp.testing import AppendNamed
from spark_ssp.testing.kafka.broker import LOOPBACK, LocalKafka

_DEFAULT_PORT = 9092


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal; 0 then, 1 when the broker cannot start."""
    options = _parser().parse_args(arguments)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    print("Kafka starts; the first time it is fetched, which takes a minute.", flush=True)
    try:
        with LocalKafka(port=options.port, host=options.host) as kafka:
            for name, partitions in options.topic:
                kafka.create_topic(name, partitions)
            print(_welcome(kafka, options.topic), flush=True)
            ended.wait()
    except (OSError, RuntimeError) as error:
        print(f"cannot start: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spark_ssp.testing.kafka",
        description="Apache Kafka, one broker, for testing.",
    )
    parser.add_argument("--port", type=int, default=_DEFAULT_PORT, help="0: any free port")
    parser.add_argument(
        "--host",
        default=LOOPBACK,
        help="the address to listen on; every program that reaches it can read and write",
    )
    parser.add_argument(
        "--topic",
        type=_topic,
        action=AppendNamed,
        default=[],
        metavar="NAME[:PARTITIONS]",
        help="a topic to create at the start; may be given several times",
    )
    return parser


def _topic(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?!\.{1,2}(?::|$))([a-zA-Z0-9_.-]{1,249})(?::([1-9]\d{0,3}))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected NAME or NAME:PARTITIONS")
    return match[1], int(match[2] or 1)


def _welcome(kafka: LocalKafka, topics: Sequence[tuple[str, int]]) -> str:
    lines = [
        f"Kafka is at {kafka.bootstrap_servers}",
        *(f"  topic {name}: {partitions} partition(s)" for name, partitions in topics),
        "",
        "In a query:",
        f'  .option("kafka.bootstrap.servers", "{kafka.bootstrap_servers}")',
        "",
        "Ctrl-C ends it; nothing is kept.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
