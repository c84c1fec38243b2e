"""The embedded Kinesis from the command line: `python -m spark_ssp.testing.kinesis --stream
orders:2`. Runs in the foreground until Ctrl-C (or SIGTERM) and prints its endpoint and client
settings."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import threading
from collections.abc import Sequence

from spark_ssp.testing import AppendNamed
from spark_ssp.testing.kinesis.server import LOOPBACK
from spark_ssp.testing.kinesis.service import EmbeddedKinesis
from spark_ssp.testing.kinesis.state.limits import Limits

_DEFAULT_PORT = 4567


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal; return 0 then, 1 if the service cannot start."""
    options = _parser().parse_args(arguments)
    service = EmbeddedKinesis(
        region=options.region,
        port=options.port,
        limits=Limits.strict() if options.strict else Limits(),
        dynamodb=options.dynamodb,
        dynamodb_port=options.dynamodb_port,
        host=options.host,
    )
    for name, shards in options.stream:
        service.state.create_stream(name, shards)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        service.start()
    except OSError as error:
        print(f"cannot start: {error}", file=sys.stderr)
        return 1
    try:
        print(_welcome(service, options.stream), flush=True)
        ended.wait()
    finally:
        service.stop()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spark_ssp.testing.kinesis",
        description="A local Amazon Kinesis Data Streams for testing.",
    )
    parser.add_argument("--port", type=int, default=_DEFAULT_PORT, help="0: any free port")
    parser.add_argument(
        "--host",
        default=LOOPBACK,
        help="the address to listen on; every program that reaches it can read and write",
    )
    parser.add_argument(
        "--stream",
        type=_stream,
        action=AppendNamed,
        default=[],
        metavar="NAME[:SHARDS]",
        help="a stream to create at the start; may be given several times",
    )
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument(
        "--strict", action="store_true", help="enforce the service's limits per second"
    )
    parser.add_argument("--dynamodb", action="store_true", help="serve DynamoDB as well (moto)")
    parser.add_argument("--dynamodb-port", type=int, default=0, help="0: any free port")
    return parser


def _stream(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"([a-zA-Z0-9_.-]{1,128})(?::([1-9]\d{0,3}))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected NAME or NAME:SHARDS")
    return match[1], int(match[2] or 1)


def _welcome(service: EmbeddedKinesis, streams: Sequence[tuple[str, int]]) -> str:
    settings = ", ".join(f'{name}="{value}"' for name, value in service.client_settings().items())
    lines = [
        f"Kinesis is at {service.endpoint_url}",
        *(f"  stream {name}: {shards} shard(s)" for name, shards in streams),
        "",
        "In Python:",
        f'  boto3.client("kinesis", {settings})',
        "For any AWS SDK or the AWS CLI:",
        *(f"  export {name}={value}" for name, value in service.environment().items()),
        "",
        "Ctrl-C ends it; nothing is kept.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
