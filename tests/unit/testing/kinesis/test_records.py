"""The record log against a naive model: a list of (ordinal, number, arrival, size)."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.testing.kinesis.state import stream
from spark_ssp.testing.kinesis.state.stream import Record, RecordLog


@dataclass(frozen=True, slots=True)
class Row:
    ordinal: int
    number: int
    arrival: int
    size: int
    visible_from: int


@dataclass(frozen=True, slots=True)
class Put:
    gap: int
    arrival: int
    size: int
    visible_from: int


@dataclass(frozen=True, slots=True)
class TrimTo:
    share: float


PUTS = st.builds(
    Put,
    gap=st.integers(1, 3),
    arrival=st.integers(0, 30),
    size=st.integers(1, 20),
    visible_from=st.integers(0, 40),
)
STEPS = st.lists(st.one_of(PUTS, PUTS, PUTS, st.builds(TrimTo, st.floats(0, 1))), max_size=60)


def build(steps: list[Put | TrimTo]) -> tuple[RecordLog, list[Row]]:
    """The same history in the log and in the model."""
    log, rows, number, ordinal = RecordLog(), [], 0, 0
    for step in steps:
        match step:
            case Put():
                number += step.gap
                record = Record(str(number), "k", b"x" * (step.size - 1), step.arrival)
                log.append(number, record, step.visible_from or None)
                rows.append(Row(ordinal, number, step.arrival, step.size, step.visible_from))
                ordinal += 1
            case TrimTo():
                keep = round(step.share * len(rows))
                assert log.trim_before(log.end - keep) == len(rows) - keep
                rows = rows[len(rows) - keep :]
    return log, rows


@given(
    steps=STEPS,
    now=st.integers(0, 45),
    probe=st.integers(0, 180),
    limit=st.integers(1, 10),
    max_bytes=st.integers(1, 80),
)
def test_the_log_finds_what_the_model_finds(
    steps: list[Put | TrimTo], now: int, probe: int, limit: int, max_bytes: int
) -> None:
    compact_at, stream._COMPACT_AT = stream._COMPACT_AT, 4
    try:
        log, rows = build(steps)
    finally:
        stream._COMPACT_AT = compact_at
    end = log.end
    horizon = rows[0].ordinal if rows else end
    assert log.horizon == horizon

    def first(found: list[Row]) -> int:
        return found[0].ordinal if found else end

    assert log.at_number(probe) == first([r for r in rows if r.number >= probe])
    assert log.after_number(probe) == first([r for r in rows if r.number > probe])
    assert log.visible_end(now) == first([r for r in rows if r.visible_from > now])
    if rows:
        start = max(log.at_number(probe), horizon)
        page = log.slice(start, end, limit=limit, max_bytes=max_bytes)
        expected: list[Row] = []
        for row in [r for r in rows if r.ordinal >= start][:limit]:
            if expected and sum(r.size for r in expected) + row.size > max_bytes:
                break
            expected.append(row)
        assert [int(r.sequence_number) for r in page.records] == [r.number for r in expected]
        assert page.next_ordinal == start + len(expected)
        assert page.size == sum(r.size for r in expected)


@given(puts=st.lists(PUTS, max_size=30), probe=st.integers(0, 31))
def test_a_time_is_found_in_sequence_order(puts: list[Put], probe: int) -> None:
    log, rows = build(list(puts))
    later = [r for r in rows if r.arrival >= probe]
    assert log.at_time(probe) == (later[0].ordinal if later else log.end)
    kept = later[0].ordinal if later else log.end
    assert log.trim_before_time(probe) == kept
    assert log.horizon == kept
