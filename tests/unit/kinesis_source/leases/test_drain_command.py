"""Asking a query to give back its shards: marks in a folder, and the way there through Spark."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pyspark_kinesis_ssp import DefaultSource
from spark_ssp.common.errors import AccessError, InvalidOptionsError
from spark_ssp.kinesis_source.leases.drain import DrainSignal, DrainStatus, drain, stop_gracefully
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH, encode

ANNE = "a-token"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


# --- Marks ----------------------------------------------------------------------------------------


def test_nothing_is_there_unless_somebody_asks(tmp_path: Path) -> None:
    marks = DrainSignal(ANNE)
    assert not marks.is_requested()
    assert not marks.is_drained()
    marks.clear()
    assert list(tmp_path.iterdir()) == []


def test_a_reader_is_asked_and_answers() -> None:
    asker, reader = DrainSignal(ANNE), DrainSignal(ANNE)
    asker.request()
    asker.request()
    assert reader.is_requested()
    assert not DrainSignal("bert").is_requested()
    reader.confirm()
    assert asker.is_drained()
    asker.clear()
    assert not reader.is_requested()
    assert not reader.is_drained()


def test_a_reader_that_was_never_asked_says_nothing(tmp_path: Path) -> None:
    marks = DrainSignal(ANNE)
    marks.request()
    marks.clear()
    marks.confirm()  # who asked has given up meanwhile
    assert not marks.is_drained()


@pytest.mark.parametrize("token", ["../../etc", "a/b", "t" * 2048, "\u00e4"])
def test_any_token_makes_a_folder_of_its_own(tmp_path: Path, token: str) -> None:
    DrainSignal(token).request()
    assert len(list(tmp_path.iterdir())) == 1
    assert DrainSignal(token).is_requested()


def open_to_others(base: Path) -> None:
    base.chmod(0o777)


def a_link(base: Path) -> None:
    base.rename(base.with_name("elsewhere"))
    base.symlink_to(base.with_name("elsewhere"))


def a_broken_link(base: Path) -> None:
    a_link(base)
    base.with_name("elsewhere").rename(base.with_name("gone"))


def a_file(base: Path) -> None:
    base.rename(base.with_name("elsewhere"))
    base.touch(mode=0o600)


@pytest.mark.parametrize("spoil", [open_to_others, a_link, a_broken_link, a_file])
def test_a_folder_that_is_not_the_user_s_alone_does_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None]
) -> None:
    marks = DrainSignal(ANNE)
    marks.request()
    (folder,) = tmp_path.iterdir()
    spoil(folder)
    assert not marks.is_requested()
    assert not marks.is_requested()
    marks.confirm()
    (warning,) = caplog.messages
    assert "cannot be stopped gracefully" in warning
    assert "other users have access" in warning
    with pytest.raises(AccessError, match="other users have access"):
        marks.request()


def test_a_folder_that_somebody_else_made_does_not_stop_a_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = DrainSignal(ANNE)
    marks.request()
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    assert not marks.is_requested()
    assert "other users have access" in caplog.text


def test_a_folder_that_cannot_be_looked_at_does_not_stop_a_query(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    marks = DrainSignal(ANNE)
    monkeypatch.setattr(Path, "lstat", refused)
    assert not marks.is_requested()
    assert "Permission denied" in caplog.text


def test_the_folder_of_all_marks_goes_with_the_last(tmp_path: Path) -> None:
    anne, bert = DrainSignal(ANNE), DrainSignal("bert")
    anne.request()
    bert.request()
    anne.clear()
    assert bert.is_requested()
    bert.clear()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_goes_while_one_asks_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir, cleared = Path.mkdir, DrainSignal("bert")
    made: list[Path] = []

    def make(folder: Path, mode: int = 0o777) -> None:
        mkdir(folder, mode)
        made.append(folder)
        if len(made) == 1:
            cleared.clear()

    monkeypatch.setattr(Path, "mkdir", make)
    DrainSignal(ANNE).request()
    assert DrainSignal(ANNE).is_requested()
    assert [folder.parent for folder in made] == [tmp_path, tmp_path, made[0]]


# --- Through Spark --------------------------------------------------------------------------------


def test_options_of_a_plain_read_ask_for_nothing() -> None:
    assert drain({"streamName": "orders"}) is None


def names(step: str) -> list[str]:
    found = DefaultSource({"DRAINTOKEN": ANNE, "drainstep": step}).schema()
    assert isinstance(found, StructType)
    return found.names


def test_a_schema_says_how_the_reader_stands() -> None:
    assert names("ask") == ["draining"]
    assert DrainSignal(ANNE).is_requested()
    DrainSignal(ANNE).confirm()
    assert names("ask") == ["drained"]
    assert names("clear") == ["cleared"]
    assert not DrainSignal(ANNE).is_requested()


@pytest.mark.parametrize("step", [{}, {"drainStep": "Ask"}, {"drainStep": "stop"}])
def test_a_step_that_there_is_not_is_refused(tmp_path: Path, step: dict[str, str]) -> None:
    with pytest.raises(InvalidOptionsError, match=r"drainStep: .* one of ask, clear"):
        DefaultSource({"drainToken": ANNE} | step).schema()
    assert list(tmp_path.iterdir()) == []


# --- The function ---------------------------------------------------------------------------------


class Reading:
    """`spark.read`, as far as it is used; these steps for these tokens fail."""

    def __init__(self, failing: set[tuple[str, str]]) -> None:
        self.options: dict[str, str] = {}
        self.failing = failing

    def format(self, name: str) -> Reading:
        assert name == "kinesis-ssp"
        return self

    def option(self, name: str, value: str) -> Reading:
        self.options[name] = value
        return self

    def load(self) -> Any:
        if (self.options["drainToken"], self.options["drainStep"]) in self.failing:
            raise ConnectionError("no answer")
        standing = drain(self.options)
        assert isinstance(standing, DrainStatus)
        return type("Frame", (), {"columns": [standing.value]})


class Spark:
    """A session."""

    def __init__(self, failing: set[tuple[str, str]] | None = None) -> None:
        self.failing = failing or set()

    @property
    def read(self) -> Reading:
        return Reading(self.failing)


def progress(end: Any, latest: Any) -> dict[str, str]:
    """A source in a report of Spark's, which describes all sources in Python alike."""
    return {
        "description": "org.apache.spark…python.PythonMicroBatchStreamWithTriggerAvailableNow@1",
        "endOffset": json.dumps(end),
        "latestOffset": json.dumps(latest),
    }


class Query:
    """A running query whose readers have these tokens; it drains after some looks at it."""

    def __init__(self, *tokens: str | None, drains_after: int | None = 3) -> None:
        self.tokens = tokens
        self.looks = 0
        self.drains_after = drains_after
        self.isActive = True
        self.stops = 0
        self.stop_fails = False
        self.stop_breaks = False
        self.fails_at: int | None = None
        self.error: Exception | None = None
        self.begins_after = 1
        self.replays_until = 0
        self.extra_attributes: list[dict[str, str]] = []

    @property
    def lastProgress(self) -> Any:
        self.looks += 1
        if self.looks == self.fails_at:
            self.fail()
        if self.looks <= self.begins_after:
            return None  # no batch yet
        if self.drains_after is not None and self.looks > self.drains_after:
            for token in filter(None, self.tokens):
                if DrainSignal(token).is_requested():
                    DrainSignal(token).confirm()
        at_latest = {"maxMillisBehindLatest": 0}
        lags: list[Any] = [
            {"orders": at_latest | ({"drainToken": t} if t else {})} for t in self.tokens
        ]
        if self.looks <= self.replays_until:
            lags = [None for _ in lags]
        ours = [progress(encode(BEFORE_FIRST_BATCH), lag) for lag in lags]
        sources = [*self.extra_attributes, *ours]
        return {"sources": sources, "batchId": 7, "timestamp": "2026-01-01T00:00:00.000Z"}

    @property
    def status(self) -> dict[str, bool]:
        return {"isTriggerActive": False}

    def fail(self) -> None:
        self.isActive = False
        self.error = RuntimeError("what the query died of")

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        if self.isActive and self.stop_breaks:
            self.fail()
        self.isActive = False
        self.stops += 1
        if self.stop_fails:
            raise TimeoutError("spark.sql.streaming.stopTimeout")


def ask(query: Query, session: Spark | None = None, *, slept: list[float] | None = None) -> bool:
    """Stop it, with a clock that goes on while one waits."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if slept is not None:
            slept.append(seconds)

    spark: Any = session or Spark()
    stopped: Any = query
    return stop_gracefully(stopped, spark=spark, timeout=10, monotonic=lambda: now[0], sleep=sleep)


def stop(query: Query, tmp_path: Path) -> bool:
    """Stop it; nothing is left behind."""
    drained = ask(query)
    assert not query.isActive
    assert query.stops == 1
    assert list(tmp_path.iterdir()) == []
    return drained


def test_a_query_is_stopped_once_it_has_drained(tmp_path: Path) -> None:
    query = Query("anne")
    assert stop(query, tmp_path)
    assert query.looks > 3


def test_every_source_of_a_query_drains(tmp_path: Path) -> None:
    assert stop(Query("anne", None, "bert"), tmp_path)


def test_a_query_without_leases_is_just_stopped(tmp_path: Path) -> None:
    assert stop(Query(None), tmp_path)


def test_a_query_that_replays_a_batch_is_asked_once_it_is_known_whom_to_ask(
    tmp_path: Path,
) -> None:
    query = Query("anne", "bert", drains_after=8)
    query.replays_until = 5
    assert stop(query, tmp_path)
    assert query.looks > 8


def test_a_query_without_leases_that_replays_a_batch_is_stopped_after_the_next(
    tmp_path: Path,
) -> None:
    query = Query(None)
    query.replays_until = 5
    assert stop(query, tmp_path)
    assert query.looks == 6


def test_a_query_that_ends_with_a_batch_that_is_replayed_has_not_drained(tmp_path: Path) -> None:
    query = Query("anne")
    query.replays_until = 1_000
    assert not stop(query, tmp_path)


@pytest.mark.parametrize("end", [{"at": 7}, 7, "7", None])
def test_sources_of_others_are_not_waited_for(tmp_path: Path, end: object) -> None:
    query = Query("anne")
    query.extra_attributes = [progress(end, None)]
    assert stop(query, tmp_path)
    alone = Query()
    alone.extra_attributes = [progress(end, None)]
    assert stop(alone, tmp_path)
    assert alone.looks == 2


def test_a_query_that_does_not_drain_is_stopped_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not stop(Query("anne", drains_after=None), tmp_path)
    assert "before it gave back its shards" in caplog.text


def test_a_query_that_has_ended_has_not_drained(tmp_path: Path) -> None:
    query = Query("anne")
    query.isActive = False
    assert not stop(query, tmp_path)


@pytest.mark.parametrize("tokens", [("anne",), (None,)], ids=["leases", "no leases"])
@pytest.mark.parametrize("look", [1, 2, 3, 4])
def test_a_query_that_fails_meanwhile_has_not_drained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tokens: tuple[str | None, ...], look: int
) -> None:
    query = Query(*tokens)
    query.begins_after = 2
    query.fails_at = look
    # Without leases it is stopped at once, with the first report.
    drained = stop(query, tmp_path)
    assert drained == (query.error is None)
    assert (query.error is None) == (tokens == (None,) and look == 4)
    assert ("see its exception()" in caplog.text) == (query.error is not None)
    assert "what the query died of" not in caplog.text


def test_an_error_that_stopping_makes_does_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query("anne")
    query.stop_breaks = True
    assert stop(query, tmp_path)
    assert caplog.messages == []


def test_the_longer_it_takes_the_more_seldom_it_is_asked() -> None:
    query, slept = Query("anne", drains_after=None), list[float]()
    query.begins_after = 4
    assert not ask(query, slept=slept)
    # Looking at the progress costs little, asking does not. The time limit is kept to.
    assert slept[:4] == [0.2] * 4
    assert slept[4:] == pytest.approx([0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 0.2])
    assert sum(slept) == pytest.approx(10)


def test_marks_are_removed_when_the_query_cannot_be_stopped() -> None:
    query = Query("anne", "bert")
    query.stop_fails = True
    with pytest.raises(TimeoutError, match="stopTimeout"):
        ask(query)
    assert not DrainSignal("anne").is_requested()
    assert not DrainSignal("bert").is_requested()


def test_marks_are_removed_when_others_cannot_be() -> None:
    query = Query("anne", "bert")
    with pytest.raises(ConnectionError, match="no answer"):
        ask(query, Spark({("anne", "clear")}))
    assert query.stops == 1
    assert DrainSignal("anne").is_requested()
    assert not DrainSignal("bert").is_requested()
