"""A stream whose service chooses the shards, read by queries that share its shards by leases."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ssp.checkpoint.leases.lease import Processed
from spark_ssp.checkpoint.leases.lease_serializer import encode
from spark_ssp.grouping.identifiers import WorkerId
from spark_ssp.kinesis_source.model.deaggregation import KeyFilter, split
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.kinesis_source.model.shard import SequenceNumber
from spark_ssp.kinesis_source.planning.input_partitions import plan_ranges
from spark_ssp.kinesis_source.reading.process_wide import HashRangeCache, ReadRates
from spark_ssp.kinesis_source.reading.task_reader import read_slot
from spark_ssp.testing.kinesis import Distribution, StreamMode
from tests.support.fakes.planner_world import Batch
from tests.support.fakes.scripted import FakeTime
from tests.support.kcl.kpl import WHOLE, Put, aggregate
from tests.support.leases.values import lease
from tests.support.leases.worlds import Company, LeaseWorld

USERS = 5
KCL = WorkerId("a-worker-of-the-kcl")


class Query(LeaseWorld):
    """A query that reads as on an executor, aggregates split."""

    def run(self, end: Offset) -> Batch:
        streams = {ref.name: ref for ref in self.options.streams}
        ranges = plan_ranges(self.offset, end, streams)
        read = [
            data.decode()
            for part in ranges
            for rows in read_slot(
                part,
                self.options,
                self.service,
                clock=FakeTime().clock,
                hash_ranges=HashRangeCache(),
                rates=ReadRates(),
            )
            for data in rows.column("data").to_pylist()
        ]
        batch = Batch(start=self.offset, end=end, ranges=ranges, read=read)
        self.offset = end
        return batch


@pytest.fixture
def company(tmp_path: Path) -> Company:
    """A stream of two shards under AUTO."""
    made = Company(tmp_path / "marks", shards=2)
    made.state.stream("orders").set_mode(StreamMode.ON_DEMAND)
    made.state.set_distribution("orders", Distribution.AUTO)
    return made


class Producer:
    """Puts aggregates, each made for one open shard, in turn."""

    def __init__(self, company: Company) -> None:
        self._state = company.state
        self.put: list[str] = []

    def aggregates(self, count: int) -> None:
        for _ in range(count):
            opened = self._state.stream("orders").open_shards()
            made_for = opened[len(self.put) // (2 * USERS) % len(opened)].hash_range.first
            texts = [f"{len(self.put) + n:03d}" for n in range(USERS)]
            data = aggregate(
                [
                    Put(partition_key="k", data=text.encode(), explicit_hash_key=str(made_for))
                    for text in texts
                ]
            )
            self._state.put("orders", "k", data, explicit_hash_key=made_for)
            self.put += texts


def test_a_hundred_user_records_are_read_once_through_switches(company: Company) -> None:
    producer = Producer(company)
    anne = Query(company, "anne")
    producer.aggregates(4)
    read = company.work(anne)
    bert = Query(company, "bert")
    company.state.split("orders", "shardId-000000000000")
    for strategy in (Distribution.USER_PARTITION_KEY, Distribution.AUTO) * 2:
        producer.aggregates(2)
        read += company.work(anne, bert, rounds=70)
        company.state.set_distribution("orders", strategy)
        producer.aggregates(2)
        read += company.work(anne, bert, rounds=70)
    read += company.work(anne, bert, rounds=30)
    assert len(producer.put) == 100
    assert sorted(read) == producer.put
    assert anne.offset.states
    assert bert.offset.states


def test_what_a_worker_of_the_kcl_leaves_is_read_whole(company: Company) -> None:
    """It has read half of its shard, and drops each aggregate of other hash keys: that is lost
    already. From its checkpoint on, which is within an aggregate, nothing is."""
    producer = Producer(company)
    producer.aggregates(20)
    half = company.state.shard("orders", "shardId-000000000001")
    records = company.state.records("orders", half.shard_id)
    last, sub = records[4], 1
    row = lease(
        half.shard_id,
        owner=KCL,
        counter=7,
        progress=Processed(sequence_number=SequenceNumber(last.sequence_number), sub=sub),
        has_entity_type=False,
    )
    company.table.store.put_item(encode(row))
    read = company.work(Query(company, "anne"), rounds=60)
    users = [[user.data.decode() for user in split(record.data) or ()] for record in records]
    before = [text for of_record in users[:4] for text in of_record] + users[4][: sub + 1]
    assert sorted([*read, *before]) == producer.put
    own = KeyFilter(own=half.hash_range, family=WHOLE)
    delivered_by_kcl = [
        record for record in records[:4] if len(split(record.data, own) or ()) == USERS
    ]
    assert len(delivered_by_kcl) == 2, "the loss that docs/guide/leases.md describes"
