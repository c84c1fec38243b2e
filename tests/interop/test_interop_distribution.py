"""Aggregates in other shards than those of their user records' keys: `make interop`. So it is under
the record distribution strategy AUTO, which kinesis-mock lacks. To its readers it is the same when
the key of the Kinesis record decides the shard, and user records have other keys."""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

import pytest

from tests.interop.scenarios import SHARDS, running
from tests.interop.scene import STREAM, Scene
from tests.interop.starts import kcl, ours
from tests.support.kcl.jars import KclVersion
from tests.support.kcl.kpl import Put, aggregate
from tests.support.kcl.workers import Worker
from tests.support.kinesis.feeds import RemoteFeed

pytestmark = pytest.mark.interop

_AGGREGATES: Final = 50
_USER_RECORDS: Final = 2
_FIRST: Final = 1_000_000
"""Above all numbers of the producer."""


class _Placed(NamedTuple):
    """A user record's number, the shard of its aggregate, and whether its key belongs there."""

    number: int
    shard: str
    by_key: bool


def test_a_query_reads_each_user_record_of_its_shards(scene: Scene) -> None:
    """The KCL worker drops those whose keys belong to other shards; the query drops none."""
    feed = scene.feed
    assert isinstance(feed, RemoteFeed)
    with (
        running(scene, kcl(KclVersion.V3_1), "anne") as anne,
        running(scene, ours, "bert") as bert,
    ):
        scene.wait(lambda: _share(scene, anne, bert), "the shards are shared out")
        scene.producer.end()
        scene.wait_until_read()
        held = scene.watch.held_by(bert)
        placed = [each for number in range(_AGGREGATES) for each in _put(feed, number)]
        by_bert = {each.number for each in placed if each.shard in held}
        by_anne = {each.number for each in placed if each.shard not in held and each.by_key}
        scene.wait(lambda: by_bert <= set(_numbers(bert)), "bert has read the aggregates")
        scene.wait(lambda: by_anne <= set(_numbers(anne)), "anne has read those of her keys")
        assert scene.watch.held_by(bert) == held, "a lease has moved"
        # The other way round, bert would take over anne's shards and read those she has dropped.
        bert.stop()
        anne.stop()
    assert _numbers(bert) == sorted(by_bert)
    assert any(not each.by_key for each in placed if each.shard in held)
    assert _numbers(anne) == sorted(by_anne)


def _share(scene: Scene, anne: Worker, bert: Worker) -> bool:
    shares = [scene.watch.held_by(each) for each in (anne, bert)]
    return {len(share) for share in shares} == {SHARDS // 2}  # another share is still moving


def _put(feed: RemoteFeed, serial: int) -> list[_Placed]:
    numbers = [_FIRST + serial * _USER_RECORDS + nth for nth in range(_USER_RECORDS)]
    key = f"user-{serial}"
    puts = [Put(partition_key=key, data=b"%d" % number) for number in numbers]
    shard = feed.put_data(STREAM, f"outer-{serial}", aggregate(puts)).shard
    first, last = feed.hash_ranges(STREAM)[shard]
    digest = hashlib.md5(key.encode(), usedforsecurity=False).digest()
    by_key = first <= int.from_bytes(digest, "big") <= last
    return [_Placed(number=number, shard=shard, by_key=by_key) for number in numbers]


def _numbers(worker: Worker) -> list[int]:
    return sorted(int(read.data) for read in worker.reads() if int(read.data) >= _FIRST)
