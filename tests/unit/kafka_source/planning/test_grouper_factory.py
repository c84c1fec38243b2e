"""Which grouper a query has: by its options, and by its checkpoint where they leave it open."""

from __future__ import annotations

from typing import Final

import pytest

from spark_ssp.grouping.fixed_tasks import OnPartitionCountChange
from spark_ssp.grouping.groupers import GroupByPartition, GroupBySystemStreamPartition, Grouper
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.planning.plan_batch import create_grouping

LEAST: Final = {"kafka.bootstrap.servers": "broker:9092", "subscribe": "orders"}
MODULO: Final = "spark_ssp.grouping.expansion.ModuloExpansion"
BY_PARTITION, BY_SSP = GroupByPartition(), GroupBySystemStreamPartition()
KEEP, REGROUP = OnPartitionCountChange


@pytest.mark.parametrize(
    ("options", "label", "grouper", "on_count_change"),
    [
        # As Spark's source, where no option speaks of tasks.
        ({}, "", BY_SSP, REGROUP),
        ({"includeTask": "false"}, "", BY_SSP, REGROUP),
        ({}, "ssp", BY_SSP, REGROUP),
        # What the query did before there was this default.
        ({}, "partition", BY_PARTITION, KEEP),
        ({}, "single", BY_PARTITION, KEEP),
        ({}, "partition mod 4", BY_PARTITION, KEEP),
        # Any option about tasks.
        ({"includeTask": "true"}, "", BY_PARTITION, KEEP),
        ({"assignmentStore": "file:///x"}, "", BY_PARTITION, KEEP),
        ({"onPartitionCountChange": "keep"}, "", BY_PARTITION, KEEP),
        ({"onPartitionCountChange": "regroup"}, "", BY_PARTITION, REGROUP),
        ({"partitionExpansionAlgorithm": MODULO}, "", BY_PARTITION, KEEP),
        ({"tasks": "4"}, "", GroupByPartition(tasks=4), KEEP),
        ({"tasks": "4"}, "ssp", GroupByPartition(tasks=4), KEEP),
        ({"grouper": "ssp"}, "", BY_SSP, KEEP),
        ({"grouper": "partition"}, "ssp", BY_PARTITION, KEEP),
        # What such an option leaves open, the checkpoint decides.
        ({"includeTask": "true"}, "ssp", BY_SSP, KEEP),
        ({"onPartitionCountChange": "regroup"}, "ssp", BY_SSP, REGROUP),
        ({"onPartitionCountChange": "regroup"}, "partition", BY_PARTITION, REGROUP),
    ],
)
def test_the_grouper_that_options_leave_open(
    options: dict[str, str], label: str, grouper: Grouper, on_count_change: OnPartitionCountChange
) -> None:
    found = create_grouping(parse_options({**LEAST, **options}), label)
    assert (found.grouper, found.on_count_change) == (grouper, on_count_change)
