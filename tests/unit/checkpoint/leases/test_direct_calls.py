"""Calls to the lease table without botocore: answers that are refused, unusual or cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from spark_ssp.checkpoint.leases.conditional_writes import Conflict, Renew
from spark_ssp.checkpoint.leases.dynamodb_calls import DECODERS
from spark_ssp.checkpoint.leases.dynamodb_store import DynamoDbLeaseStore
from spark_ssp.checkpoint.leases.lease_serializer import encode
from spark_ssp.checkpoint.leases.lease_store import TableSettings
from spark_ssp.common.aws.botocore_bypass import DirectCalls
from tests.support.fakes.direct_calls import short_ways
from tests.support.fakes.scripted_http import Reply, ScriptedHttp, reply
from tests.support.leases.stores import client, lease_store
from tests.support.leases.values import ANNE, lease

HELD: Final = lease(counter=7, owner=ANNE, ssp_owner=ANNE)
ROW: Final = encode(HELD)
ONE_ROW: Final = reply({"Items": [ROW]})
BYTES: Final = ROW | {"picture": {"B": "AP8="}}


class _Served:
    """A store on a server that answers by a script, with the calls made directly that can be."""

    def __init__(self, *answers: Reply) -> None:
        self.server = ScriptedHttp(*answers)

    def __enter__(self) -> DynamoDbLeaseStore:
        url = self.server.__enter__().url
        self._client: Any = client(url)
        direct = DirectCalls(self._client, DECODERS)
        settings = TableSettings(name="leases")
        return lease_store(self._client, settings, lambda _: None, direct)

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self.server.__exit__(None, None, None)


@pytest.mark.parametrize("body", [b'{"Items": [', b"", b"[]", b"null"])
def test_a_cut_scan_is_made_again_and_never_an_empty_table(body: bytes) -> None:
    served = _Served(ONE_ROW, Reply(body=body), ONE_ROW)
    with served as store:
        for _ in range(2):
            assert store.scan().leases == (HELD,)
    assert short_ways(served.server) == [False, True, True]


def test_a_refused_update_has_the_row() -> None:
    error = {"__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException"}
    row = replace(HELD, counter=9)
    done = reply({"Attributes": encode(replace(HELD, counter=8))})
    served = _Served(done, reply(error | {"Item": encode(row)}, status=400))
    with served as store:
        store.write(Renew(lease=HELD))
        assert store.write(Renew(lease=HELD)) == Conflict(found=row)
    assert short_ways(served.server) == [False, True]


def test_binary_values_are_parsed_by_botocore() -> None:
    served = _Served(ONE_ROW, reply({"Items": [BYTES]}))
    with served as store:
        store.scan()
        (found,) = store.scan().leases
    assert found.extra_attributes == {"picture": {"B": b"\x00\xff"}}
    assert short_ways(served.server) == [False, True]


def test_pages_of_a_scan_are_followed() -> None:
    other = lease(shard="shardId-000000000007")
    first = reply({"Items": [ROW], "LastEvaluatedKey": {"leaseKey": ROW["leaseKey"]}})
    served = _Served(ONE_ROW, first, reply({"Items": [encode(other)]}))
    with served as store:
        store.scan()
        assert store.scan().leases == (HELD, other)
    (*_, last) = served.server.requests
    assert last.json()["ExclusiveStartKey"] == {"leaseKey": {"S": HELD.key}}
