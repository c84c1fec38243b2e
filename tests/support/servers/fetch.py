"""Fetch the servers of the tests now: `python -m tests.support.servers.fetch`. `make test` does so
while the linters are at work. A test whose server is absent fetches it, or waits for the process
that is fetching it."""

from __future__ import annotations

from spark_ssp.testing.kafka import broker
from tests.support.kafka import group_tool
from tests.support.servers import cache, dynamodb_local, kinesis_mock, spark_kafka


def main() -> None:
    cache.use()
    # In the order in which the tests want them.
    spark_kafka.install()
    broker.install()
    group_tool.install()
    dynamodb_local.install()
    kinesis_mock.install()


if __name__ == "__main__":
    main()
