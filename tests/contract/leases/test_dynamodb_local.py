"""DynamoDB Local as the tests run it: on this machine alone, and gone afterwards."""

from __future__ import annotations

import ipaddress

import psutil
import pytest

from tests.support.leases.stores import client
from tests.support.servers.dynamodb_local import DynamoDbLocal

# On first use the server is fetched.
pytestmark = pytest.mark.timeout(1200)


def test_it_listens_on_the_loopback_alone_and_ends() -> None:
    with DynamoDbLocal() as server:
        assert client(server.endpoint_url).list_tables()["TableNames"] == []
        process = psutil.Process(server.pid)
        listening = [
            connection.laddr.ip
            for connection in process.net_connections(kind="inet")
            if connection.status == psutil.CONN_LISTEN
        ]
    assert listening
    assert all(_is_loopback(address) for address in listening)
    assert not process.is_running()


def _is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
