"""`spark-ssp status` on checkpoints of Kafka queries, without brokers: what a checkpoint shows by
itself."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.kafka_source.options.values import KafkaOptions
from spark_ssp.operations.commands.status import EXIT_CODES
from spark_ssp.operations.health import Verdict
from spark_ssp.operations.inspection.checkpoint_folder import open_folder
from tests.architecture.layers import ROOT
from tests.support.fakes.kafka_fake import FakeKafka
from tests.support.kafka.partitions import ssp
from tests.support.kafka.topics import Record
from tests.support.operations.checkpoints import WrittenCheckpoint
from tests.support.operations.command import run
from tests.support.operations.reports import kafka_end_offset

NOW = 1_795_464_000_000
HOUR = 3_600_000


@pytest.fixture
def checkpoint(tmp_path: Path) -> WrittenCheckpoint:
    """A query that committed a batch an hour ago."""
    found = WrittenCheckpoint(path=tmp_path / "orders")
    found.plan(0, kafka_end_offset("orders", 2, 7), NOW - HOUR)
    found.commit(0, NOW - HOUR)
    return found


def test_without_brokers_nothing_is_known_and_nothing_is_ok(checkpoint: WrittenCheckpoint) -> None:
    found = run("status", str(checkpoint.path), now_ms=NOW)
    assert found.code == 6
    assert "UNKNOWN" in found.out
    assert "give --bootstrap-servers" in found.out
    assert "1 h ago" in found.out


def test_a_hung_batch_shows_without_brokers(checkpoint: WrittenCheckpoint) -> None:
    checkpoint.plan(1, kafka_end_offset("orders", 2, 9), NOW - HOUR + 1)
    found = run("status", str(checkpoint.path), "--json", now_ms=NOW)
    (query,) = found.document()["queries"]
    assert (found.code, query["verdict"], query["batchInProgress"]) == (3, "STALLED", 1)
    assert [finding["verdict"] for finding in query["findings"]] == ["STALLED", "UNKNOWN"]


@pytest.mark.parametrize(
    ("retention", "code", "verdict"),
    [(None, 1, "BEHIND"), ("70m", 5, "LOSING"), ("7d", 1, "BEHIND")],
)
def test_the_delay_of_partitions(
    checkpoint: WrittenCheckpoint,
    monkeypatch: pytest.MonkeyPatch,
    retention: str | None,
    code: int,
    verdict: str,
) -> None:
    """By a model of the brokers. A record is unread in the second partition, for 40 minutes."""
    kafka = FakeKafka()
    kafka.create(2, name="orders")
    kafka.fill("orders", 7, 7)
    late = Record(value=b"s3cr3t", partition=1, time_ms=NOW - 40 * 60_000)
    kafka.put("orders", [late])
    monkeypatch.setattr(
        "spark_ssp.operations.inspection.query_facts.connect", lambda options: kafka
    )
    arguments = ["status", str(checkpoint.path), "--bootstrap-servers=localhost:9092"]
    if retention is not None:
        arguments.append(f"--retention={retention}")
    found = run(*arguments, "--json", "--stuck-after=2h", now_ms=NOW)
    (query,) = found.document()["queries"]
    assert (found.code, query["verdict"], query["committedDelay"]["offsets"]) == (code, verdict, 1)
    assert 40 * 60_000 <= query["committedDelay"]["ms"] <= 80 * 60_000
    assert [part["name"] for part in query["parts"]] == ["orders-0", "orders-1"]
    text = run(*arguments, "--stuck-after=2h", now_ms=NOW)
    assert "orders-1 is " in text.out
    assert "(1 offsets)" in text.out
    assert "s3cr3t" not in found.out + text.out


@pytest.mark.parametrize("since", [7, 5])
def test_an_open_transaction_is_no_end_of_a_log(
    checkpoint: WrittenCheckpoint, monkeypatch: pytest.MonkeyPatch, since: int
) -> None:
    """With the options of a query of committed records, at the transaction or after its start."""

    def connect(options: KafkaOptions) -> FakeKafka:
        kafka = FakeKafka(options.isolation_level)
        kafka.create(2, name="orders")
        kafka.fill("orders", 7, 7)
        kafka.put("orders", [Record(value=b"", partition=1, time_ms=NOW - 40 * 60_000)])
        kafka.log(ssp("orders", 1)).open_since = since
        return kafka

    monkeypatch.setattr("spark_ssp.operations.inspection.query_facts.connect", connect)
    found = run(
        *("status", str(checkpoint.path), "--json", "--stuck-after=2h"),
        *("--bootstrap-servers=localhost:9092", "--property=kafka.isolation.level=read_committed"),
        now_ms=NOW,
    )
    (query,) = found.document()["queries"]
    assert (found.code, query["committedDelay"]["offsets"]) == (1, 1)
    assert [finding["verdict"] for finding in query["findings"]] == ["BEHIND"]


def test_a_query_is_judged_as_it_is_when_it_is_measured(
    checkpoint: WrittenCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that take 20 minutes for one query, while the other commits what it had planned."""
    other = WrittenCheckpoint(path=checkpoint.path.parent / "totals")
    kafka, now = FakeKafka(), NOW
    kafka.create(2, name="orders")
    kafka.fill("orders", 7, 7)
    for query in (checkpoint, other):
        query.plan(1, kafka_end_offset("orders", 2, 7), NOW - 1_000)
        query.commit(1, NOW)
    other.plan(2, kafka_end_offset("orders", 2, 7), NOW)

    def connect(options: object) -> FakeKafka:
        nonlocal now
        now += 20 * 60_000
        other.commit(2, NOW + 20 * 60_000)
        return kafka

    monkeypatch.setattr("spark_ssp.operations.inspection.query_facts.connect", connect)
    arguments = ("status", str(other.path.parent), "--bootstrap-servers=localhost:9092", "--json")
    found = run(*arguments, now_ms=lambda: now)
    first, second = found.document()["queries"]
    assert (found.code, first["commitAgeMs"], second["commitAgeMs"]) == (0, 0, 0)
    assert (second["committedBatch"], second["triggerAgeMs"]) == (2, 20 * 60_000)


def test_a_source_of_another_package_is_not_measured(tmp_path: Path) -> None:
    other = WrittenCheckpoint(path=tmp_path)
    other.plan(0, {"logOffset": 3}, NOW)
    other.commit(0, NOW)
    found = run("status", str(tmp_path), now_ms=NOW)
    assert found.code == 6
    assert "nothing that it reads could be measured" in found.out


def test_the_time_of_a_commit_is_that_of_its_file(checkpoint: WrittenCheckpoint) -> None:
    """Also in a storage of fsspec's, which has times of its own."""
    system = fsspec.filesystem("memory")
    system.put(str(checkpoint.path), "/jobs/orders", recursive=True)
    times = [
        run("status", path, "--json", now_ms=NOW).document()["queries"][0]["committedAtMs"]
        for path in (str(checkpoint.path), "memory://jobs")
    ]
    written = round(system.modified("/jobs/orders/commits/0").timestamp() * 1000)
    system.rm("/jobs", recursive=True)
    assert times == [NOW - HOUR, written]


class CachingSystem(MemoryFileSystem):  # type: ignore[misc]
    """Keeps listings, as the packages of some stores do."""

    protocol = "caching"
    store: ClassVar[dict[str, Any]] = {}

    @classmethod
    def _strip_protocol(cls, path: str) -> Any:
        return super()._strip_protocol(path.removeprefix("caching://"))

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        found = self.dircache[path] if path in self.dircache else super().ls(path, True, **more)
        self.dircache[path] = found
        return found


def test_a_listing_is_never_an_earlier_one() -> None:
    fsspec.register_implementation("caching", CachingSystem, clobber=True)
    written = CachingSystem()
    folder = open_folder("caching://jobs", ConnectionOptions(region="us-east-1"))
    for batch in ("0", "1"):
        written.pipe(f"/jobs/offsets/{batch}", b"v1")
        assert batch in folder.listing("offsets").files


@pytest.mark.parametrize("command", ["status", "checkpoint", "watch"])
def test_credentials_of_a_uri_are_not_shown(checkpoint: WrittenCheckpoint, command: str) -> None:
    system = fsspec.filesystem("memory")
    system.put(str(checkpoint.path), "/KEY:s3cr3t@host/jobs", recursive=True)
    uri, shown = "memory://KEY:s3cr3t@host/jobs", "memory://***@host/jobs"
    arguments = {"checkpoint": [["--delay"], ["--as-starting-position"]], "watch": []}
    found = [
        run(command, uri, *more, now_ms=NOW) for more in (*arguments.get(command, [[]]), ["--json"])
    ]
    system.rm("/KEY:s3cr3t@host/jobs/offsets", recursive=True)
    found.append(run(command, uri, "--json", now_ms=NOW))
    system.rm("/KEY:s3cr3t@host", recursive=True)
    assert "s3cr3t" not in str(found)
    assert all(shown in one.out + one.err for one in found if "startingOffsets" not in one.out)


class FailingSystem(MemoryFileSystem):  # type: ignore[misc]
    """Quotes the path in its errors, as some of fsspec's do."""

    protocol = "failing"

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        raise RuntimeError(f"no listing of {path}")


@pytest.mark.parametrize("command", ["status", "checkpoint", "watch"])
def test_errors_of_storages_do_not_show_credentials_of_a_uri(command: str) -> None:
    """A password may contain a slash; the parser of fsspec takes what is before it for a port."""
    fsspec.register_implementation("failing", FailingSystem, clobber=True)
    for uri in ("ftp://u:s3c/r3t@host/x", "failing://u:s3c/r3t@host/x", "failing://u:s3cr3t@host"):
        found = run(command, uri, "--json", now_ms=NOW)
        assert found.code != 0
        assert "//***@host" in found.out + found.err
        assert not re.search("s3c|r3t", found.out + found.err)
    assert "no listing of failing://jobs" in str(run(command, "failing://jobs", now_ms=NOW))


def test_a_package_that_a_storage_needs_is_named_beside_a_password() -> None:
    fsspec.register_implementation(
        "lacking", "absent_package.System", errtxt="install absent_package", clobber=True
    )
    found = run("status", "lacking://u:s3cr3t@host/x", now_ms=NOW)
    assert "install absent_package" in found.out
    assert "s3cr3t" not in found.out


def test_what_is_no_checkpoint_is_a_failure(tmp_path: Path) -> None:
    found = run("status", str(tmp_path / "missing"))
    assert (found.code, found.out) == (2, "")
    assert "no such folder" in found.err
    assert run("status").code == 2


def test_a_wrong_property_of_the_kafka_client_is_a_wrong_call(
    checkpoint: WrittenCheckpoint,
) -> None:
    brokers = "--bootstrap-servers=localhost:9092"
    found = run("status", str(checkpoint.path), brokers, "--property=kafka.group.idd=5")
    assert (found.code, found.out, "kafka.group.idd" in found.err) == (2, "", True)


@pytest.mark.parametrize("log", ["offsets", "commits", "storage"])
def test_a_checkpoint_that_cannot_be_read_does_not_hide_the_others(
    checkpoint: WrittenCheckpoint, log: str
) -> None:
    """Although it is named: written by a later Spark, or in a storage that does not answer."""
    other = WrittenCheckpoint(path=checkpoint.path.parent / "totals")
    other.plan(0, kafka_end_offset("orders", 2, 7), NOW)
    other.commit(0, NOW)
    path = str(other.path)
    if log == "storage":
        path = "s3://lake/jobs/totals"
    else:
        (other.path / log / "0").write_text('v9\n{"batchTimestampMs": 1}\n{}')
    nowhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_REGION": "us-east-1"}
    keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "local")
    arguments = ("status", path, str(checkpoint.path), "--json", "--option=retry.maxAttempts=1")
    found = run(*arguments, now_ms=NOW, environment=nowhere | keys)
    unread, read = found.document()["queries"]
    assert (found.code, unread["location"], unread["verdict"]) == (6, path, "UNKNOWN")
    assert read["committedBatch"] == 0


def test_a_folder_that_may_not_be_entered_or_disappears_does_not_hide_the_others(
    checkpoint: WrittenCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = checkpoint.path.parent
    locked = jobs / "locked" / "totals"
    locked.mkdir(parents=True)
    (jobs / "deleted").mkdir()

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def refused(path: Any, *more: Any, **named: Any) -> Any:
            if isinstance(path, Path) and path.is_relative_to(locked):
                raise PermissionError(13, "Permission denied")
            found = call(path, *more, **named)
            if path == jobs and (jobs / "deleted").exists() and call is scandir:
                (jobs / "deleted").rmdir()
            return found

        return refused

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", refusing(scandir))
    monkeypatch.setattr(os, "stat", refusing(os.stat))
    found = run("status", str(jobs), "--json", now_ms=NOW)
    queries = found.document()["queries"]
    assert [query["location"] for query in queries] == [str(locked), str(checkpoint.path)]
    assert [query["verdict"] for query in queries] == ["UNKNOWN", "UNKNOWN"]
    assert queries[1]["committedBatch"] == 0
    found = run("status", str(locked), str(checkpoint.path), "--json", now_ms=NOW)
    assert (found.code, found.document()["queries"]) == (6, queries)


def test_checkpoints_of_tables_are_found_and_folders_left_out_are_told(
    checkpoint: WrittenCheckpoint,
) -> None:
    jobs = checkpoint.path.parent
    found = ("_checkpoint", "orders", "table/_checkpoints/totals")
    left = ("a/b/c/totals", "env=prod/totals", "table/day=1", ".trash/orders", "table/_delta_log")
    for name in (*found, *left):
        written = WrittenCheckpoint(path=jobs / name)
        written.plan(0, kafka_end_offset("orders", 2, 7), NOW)
        written.commit(0, NOW)
    (jobs / "link").symlink_to(checkpoint.path)
    (jobs / "broken").symlink_to(jobs / "missing")
    (jobs / "loop").symlink_to(jobs / "loop")
    answer = run("status", str(jobs), "--json", now_ms=NOW)
    document = answer.document()
    locations = [query["location"] for query in document["queries"]]
    assert locations == [str(jobs / name) for name in found]
    assert document["foldersNotSearched"] == 6
    assert f"{jobs}/.trash, {jobs}/a/b/c/totals, {jobs}/env=prod and 3 more" in answer.err
    one = run("status", str(checkpoint.path), "--json", now_ms=NOW)
    assert (one.document()["foldersNotSearched"], one.err) == (0, "")


def test_a_folder_of_too_many_entries_does_not_hide_the_others(
    checkpoint: WrittenCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_ssp.operations.inspection.checkpoint_folder.MAX_ENTRIES", 4)
    jobs = checkpoint.path.parent
    for number in range(5):
        (jobs / "data" / str(number)).mkdir(parents=True)
    queries = run("status", str(jobs), "--json", now_ms=NOW).document()["queries"]
    assert [query["location"] for query in queries] == [str(jobs / "data"), str(checkpoint.path)]
    assert "more than 4 entries" in queries[0]["findings"][0]["reason"]


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_commits_with_the_ids_of_state_stores_are_read(
    checkpoint: WrittenCheckpoint, version: str
) -> None:
    commit = checkpoint.path / "commits" / "0"
    commit.write_text(f'{version}\n{{"nextBatchWatermarkMs": 0, "stateUniqueIds": {{}}}}')
    found = run("status", str(checkpoint.path), "--json", now_ms=NOW)
    (query,) = found.document()["queries"]
    assert (query["committedBatch"], query["batchInProgress"]) == (0, None)


def test_the_guide_has_the_exit_codes() -> None:
    guide = (ROOT / "docs" / "guide" / "command.md").read_text(encoding="utf-8")
    for verdict in Verdict:
        assert re.search(rf"^\| {EXIT_CODES[verdict]} \| `{verdict}` \|", guide, re.MULTILINE)
