"""The changes of a status, as an agent sends them: together they give what a whole one gives."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.checkpoint.agent.status_change import apply_change, to_change
from spark_ssp.checkpoint.coordination.protocol import Status
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey
from tests.support.leases.values import ANNE, BERT, lease

_KEYS = st.integers(min_value=0, max_value=5)


@st.composite
def _statuses(draw: st.DrawFn) -> Status:
    leases = [
        lease(
            shard=f"shardId-{number:012d}",
            counter=draw(st.integers(min_value=0, max_value=3)),
            owner=draw(st.sampled_from([ANNE, BERT])),
            extra_attributes=draw(st.sampled_from([{}, {"colour": {"S": "blue"}}])),
        )
        for number in sorted(draw(st.sets(_KEYS)))
    ]
    rows = {row.key: row for row in leases}
    held = sorted(draw(st.sets(st.sampled_from(sorted(rows)))) if rows else [])
    return Status(
        held={key: rows[key] for key in held},
        asked_for=frozenset(held[:1]),
        rows=rows,
        outage_ms=draw(st.integers(min_value=0, max_value=9)),
        released=draw(st.booleans()),
        problem=None,
    )


@given(st.lists(_statuses(), min_size=1, max_size=5))
def test_changes_give_each_status_in_turn(statuses: list[Status]) -> None:
    sent: Mapping[LeaseKey, Lease] = {}
    received: Mapping[LeaseKey, Lease] = {}
    for status in statuses:
        found = apply_change(received, to_change(sent, status))
        assert found == status
        assert list(found.rows) == sorted(found.rows)
        assert [row.extra_attributes for row in found.rows.values()] == [
            row.extra_attributes for row in status.rows.values()
        ]
        sent, received = status.rows, found.rows


@given(_statuses())
def test_a_status_that_stays_has_no_rows(status: Status) -> None:
    change = to_change(status.rows, status)
    assert (change.changed, change.removed) == ((), ())
