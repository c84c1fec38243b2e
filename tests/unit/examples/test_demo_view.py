"""What the demo shows: out of Spark's reports and the service's shards, live and in plain lines."""

from __future__ import annotations

import io
import json

from rich.console import Console

from examples.flights.check import Finding
from examples.flights.follow import (
    BatchReport,
    Rate,
    ShardInService,
    ShardRow,
    Status,
    changes,
    is_finished,
    report,
    rows,
    short,
)
from examples.flights.screen import (
    LiveScreen,
    PlainScreen,
    View,
    batch_line,
    picture,
    result,
    screen,
)
from spark_ssp.testing.kinesis.state.stream import shard_id

OFFSET = {
    "v": 1,
    "slots": 3,
    "streams": {"s": {"created": 1}},
    "ssp": {
        "0": {"s": {shard_id(0): {"at": "SHARD_END"}, shard_id(3): {"at": "TRIM_HORIZON"}}},
        "2": {"s": {shard_id(1): {"after": "17", "sub": 0, "seen": 5}}},
    },
    "waiting": {"s": {shard_id(4): {"at": "TRIM_HORIZON"}}},
}
PROGRESS = {
    "batchId": 4,
    "numInputRows": 1200,
    "durationMs": {"addBatch": 900, "triggerExecution": 1500},
    "sources": [
        {
            "endOffset": json.dumps(OFFSET),
            "latestOffset": {"s": {"millisBehindLatest": {shard_id(1): 2500}}},
        }
    ],
}
REPORT = report(PROGRESS, "s")
SERVICE = [
    ShardInService(shard=shard_id(0), parents=(), open=False, records=5, read=5),
    ShardInService(shard=shard_id(1), parents=(), open=False, records=9, read=4),
    ShardInService(shard=shard_id(2), parents=(shard_id(1),), open=True, records=3, read=0),
    ShardInService(shard=shard_id(3), parents=(shard_id(0),), open=True, records=0, read=0),
    ShardInService(shard=shard_id(4), parents=(), open=True, records=0, read=0),
    ShardInService(shard=shard_id(5), parents=(shard_id(0),), open=True, records=1, read=0),
]
VIEW = View(
    seconds=12.3,
    total=100,
    put=18,
    put_rate=20.0,
    read=9,
    read_rate=10.0,
    slots=3,
    shards=tuple(rows(SERVICE, REPORT, {shard_id(1): "reader-1", shard_id(3): None})),
    batch=REPORT,
    tasks=2,
)


def test_a_report_is_read() -> None:
    assert report(PROGRESS, "s") == BatchReport(
        batch=4,
        records=1200,
        seconds=1.5,
        positions={shard_id(0): "SHARD_END", shard_id(3): None, shard_id(1): "17"},
        slots={shard_id(0): 0, shard_id(3): 0, shard_id(1): 2},
        waiting=frozenset({shard_id(4)}),
        lag_ms={shard_id(1): 2500},
    )


def test_a_report_without_lag_is_read_too() -> None:
    source = {"endOffset": OFFSET, "latestOffset": None}
    assert report({**PROGRESS, "sources": [source]}, "s").lag_ms == {}


def test_each_shard_has_its_state() -> None:
    assert [(row.slot, row.status, row.behind, row.lag_ms) for row in VIEW.shards] == [
        (0, Status.DONE, 0, None),
        (2, Status.CLOSED, 5, 2500),
        (None, Status.WAITING, 3, None),
        (0, Status.OPEN, 0, None),
        (None, Status.WAITING, 0, None),
        (None, Status.UNSEEN, 1, None),
    ]


def test_a_shard_that_has_left_the_offset_is_done() -> None:
    gone = ShardInService(shard=shard_id(9), parents=(), open=False, records=7, read=7)
    assert rows([gone], REPORT, {})[0].status is Status.DONE


def test_the_end_is_reached_when_every_shard_is_read_to_its_latest_record() -> None:
    def row(status: Status, read: int) -> ShardRow:
        return ShardRow(
            shard="a", parents=(), slot=0, status=status, records=3, read=read, lag_ms=0
        )

    assert is_finished([row(Status.OPEN, 3), row(Status.DONE, 3)])
    assert not is_finished([row(Status.OPEN, 2), row(Status.DONE, 3)])
    assert not is_finished([row(Status.CLOSED, 3)])
    assert not is_finished([row(Status.UNSEEN, 3)])


def test_what_a_batch_changes_is_said_once() -> None:
    first = BatchReport(
        batch=1,
        records=5,
        seconds=1.0,
        positions={shard_id(0): "5", shard_id(1): None},
        slots={shard_id(0): 0, shard_id(1): 2},
    )
    assert changes(None, first) == ["batch 1 begins shard 0 in slot 0, shard 1 in slot 2"]
    assert changes(first, REPORT) == [
        "batch 4 begins shard 3 in slot 0",
        "batch 4 ends shard 0: read completely",
    ]
    after = BatchReport(
        batch=5,
        records=5,
        seconds=1.0,
        positions={shard_id(3): "8"},
        slots={shard_id(3): 0},
    )
    assert changes(REPORT, after) == ["batch 5 ends shard 1: read completely"]


def test_a_rate_is_a_mean_over_the_last_seconds() -> None:
    rate = Rate()
    assert rate.per_second() == 0.0
    for second in range(31):
        rate.add(float(second), 10 * second if second < 20 else 200 + 30 * (second - 20))
    assert rate.per_second() == 30.0


def test_names_are_short() -> None:
    assert short(shard_id(12)) == "shard 12"


# --- On a terminal, and elsewhere -----------------------------------------------------------------


def drawn(width: int = 110) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(picture(VIEW, [(1.0, "shard 1 split into shard 2"), (2.5, "and [so] on")]))
    return console.export_text()


def test_the_picture_shows_every_slot_and_shard() -> None:
    text = drawn()
    lines = text.splitlines()
    assert any("18 of 100" in line and "20/s" in line for line in lines)
    assert "batch 4: 1,200 records in 1.5 s   2 tasks (at most 3)" in text
    assert any("free" in line and line.split()[0] == "1" for line in lines)
    assert any("shard 1" in line and "closed" in line and "2.5 s" in line for line in lines)
    assert any("shard 1" in line and "reader-1" in line for line in lines)
    assert any("shard 2" in line and "nobody" in line for line in lines)
    assert any("shard 2" in line and "waits" in line for line in lines)
    assert any("1 done" in line for line in lines)
    assert "   2.5 s  and [so] on" in text


def test_the_picture_fits_a_small_terminal() -> None:
    assert max(map(len, drawn(width=80).splitlines())) == 80


def test_without_a_terminal_there_are_plain_lines() -> None:
    out = io.StringIO()
    console = Console(file=out, width=110)
    shown = screen(console)
    assert isinstance(shown, PlainScreen)
    with shown:
        shown.event(3.25, "shard 1 split into [shard 2]")
        shown.show(VIEW, new_batch=False)
        shown.show(VIEW, new_batch=True)
    assert out.getvalue().splitlines() == [
        "   3.2 s  shard 1 split into [shard 2]",
        f"  12.3 s  {batch_line(VIEW)}",
    ]
    assert "batch 4: 1,200 records in 1.5 s, 2 tasks" in batch_line(VIEW)


def test_on_a_terminal_the_picture_is_live() -> None:
    out = io.StringIO()
    shown = screen(Console(file=out, width=110, height=50, force_terminal=True))
    assert isinstance(shown, LiveScreen)
    with shown:
        shown.event(3.0, "something")
        shown.show(VIEW, new_batch=True)
    assert "something" in out.getvalue()
    assert "free" in out.getvalue()


def test_the_result_names_what_was_broken() -> None:
    console = Console(width=110, record=True, file=io.StringIO())
    console.print(
        result(
            [
                Finding(promise="one", found="fine", kept=True),
                Finding(promise="two", found="3 missing", kept=False),
            ]
        )
    )
    text = console.export_text()
    assert any("kept" in line and "one" in line for line in text.splitlines())
    assert any("BROKEN" in line and "3 missing" in line for line in text.splitlines())
