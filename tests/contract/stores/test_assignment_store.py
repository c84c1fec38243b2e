"""What every store of assignments does: on disk, in memory, on S3 and on DynamoDB."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import fsspec
import pytest

from spark_ssp.checkpoint.assignments.aws import (
    DynamoDbAssignmentStore,
    dynamodb_where,
    s3_folder,
    s3_where,
)
from spark_ssp.checkpoint.assignments.files import FileAssignmentStore, open_assignment_store
from spark_ssp.checkpoint.assignments.store import (
    AssignmentConflictError,
    AssignmentStore,
    AssignmentStoreError,
    StoredAssignment,
    Version,
    encode_text,
    parse_store_uri,
)
from spark_ssp.checkpoint.assignments.sync import AssignmentSync
from spark_ssp.common.aws.provided_credentials import forget_providers
from spark_ssp.common.aws.service_calls import RetrySettings
from spark_ssp.common.aws.store import S3Calls, S3Files, StoreCalls
from spark_ssp.common.errors import (
    AccessError,
    InvalidOptionsError,
    InvalidRequestError,
    ServiceUnavailableError,
)
from spark_ssp.grouping.assignment import NO_ASSIGNMENT, GroupByPartition, TaskAssignment
from spark_ssp.grouping.fixed_tasks import FixedTasks
from tests.support.fakes.assignment_stores import (
    ATTEMPTS,
    REGION,
    Place,
    aws_client,
    in_memory,
    on_disk,
    on_dynamodb,
    on_s3,
)
from tests.support.kafka.partitions import ssps
from tests.support.leases.stores import LOST_REPLIES, Mishap

# On first use DynamoDB Local is fetched.
pytestmark = pytest.mark.timeout(1200)

FIXED = FixedTasks(grouper=GroupByPartition())
TWO = FIXED.group(NO_ASSIGNMENT, ssps({"orders": 2}))
FOUR = FIXED.group(TWO, ssps({"orders": 4}))
EIGHT = FIXED.group(FOUR, ssps({"orders": 8}))
TOPICS = [f"topic-{number}" for number in range(3)]


@pytest.fixture(params=["disk", "memory", "s3", "moto_dynamodb", "dynamodb_local"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A new place of every kind in turn."""
    match request.param:
        case "disk":
            return on_disk(tmp_path)
        case "memory":
            return in_memory()
        case "s3":
            return on_s3(request.getfixturevalue("moto"))
        case server:
            return on_dynamodb(request.getfixturevalue(server))


@pytest.fixture(params=["s3", "dynamodb"])
def remote(request: pytest.FixtureRequest, moto: str, moto_dynamodb: str) -> Place:
    """A new place behind a network."""
    return on_s3(moto) if request.param == "s3" else on_dynamodb(moto_dynamodb)


@pytest.fixture
def store(place: Place) -> Iterator[AssignmentStore]:
    opened = place.open()
    yield opened
    opened.close()


# --- Reading and writing --------------------------------------------------------------------------


def test_nothing_is_stored_until_it_is_written(store: AssignmentStore, place: Place) -> None:
    assert store.uri == place.uri
    assert store.read() is None
    first = store.write(TWO, None)
    assert store.read() == StoredAssignment(assignment=TWO, version=first)
    second = store.write(FOUR, first)
    assert second != first
    assert place.open().read() == StoredAssignment(assignment=FOUR, version=second)


def test_versions_are_counted_beyond_nine(store: AssignmentStore) -> None:
    version = None
    for number in range(1, 13):
        version = store.write(FIXED.group(NO_ASSIGNMENT, ssps({"orders": number})), version)
    stored = store.read()
    assert stored is not None
    assert stored.version == version
    assert len(stored.assignment.tasks) == 12


def test_of_two_writers_one_gets_an_error(place: Place) -> None:
    anne, bert = place.open(), place.open()
    first = anne.write(TWO, None)
    with pytest.raises(AssignmentConflictError, match="that another query wrote since it was read"):
        bert.write(FOUR, None)
    second = bert.write(FOUR, first)
    with pytest.raises(AssignmentConflictError) as caught:
        anne.write(EIGHT, first)
    assert caught.value.subject == f"assignment store {place.uri}"
    assert anne.read() == StoredAssignment(assignment=FOUR, version=second)
    anne.close()
    bert.close()


def test_a_writer_that_was_suspended_for_long_gets_an_error(store: AssignmentStore) -> None:
    first = store.write(TWO, None)
    store.write(EIGHT, store.write(FOUR, first))
    with pytest.raises(AssignmentConflictError):
        store.write(TWO, None)
    with pytest.raises(AssignmentConflictError):
        store.write(TWO, first)


def test_two_that_write_the_same_agree(place: Place) -> None:
    """Nothing is overwritten by it; and so a reply that was lost is no conflict."""
    anne, bert = place.open(), place.open()
    assert anne.write(TWO, None) == bert.write(TWO, None)
    anne.close()
    bert.close()


# --- Content --------------------------------------------------------------------------------------


UNREADABLE = {
    "": "not JSON",
    '{"v": 1, "grou': "not JSON",
    "[]": "no version",
    '{"v": 3}': "assignment version 3",
    '{"v": 2, "grouper": "partition"}': "an assignment without 'counts'",
    '{"v": 1, "grouper": "partition", "counts": {}}': "an assignment without 'tasks'",
}


def test_what_is_no_assignment_is_named(store: AssignmentStore, place: Place) -> None:
    version = store.write(TWO, None)
    for number, (text, found) in enumerate(UNREADABLE.items(), start=version + 1):
        place.put(number, text)
        with pytest.raises(AssignmentStoreError) as caught:
            store.read()
        assert place.uri in caught.value.subject
        assert found in caught.value.found
        assert "another assignmentStore" in caught.value.next_step
        # As it advises: what was there before is put back.
        place.put(number, encode_text(TWO))
        assert store.read() == StoredAssignment(assignment=TWO, version=Version(number))


def test_what_another_program_wrote_rightly_is_read(store: AssignmentStore, place: Place) -> None:
    first = store.write(TWO, None)
    place.put(first + 1, encode_text(FOUR))
    assert store.read() == StoredAssignment(assignment=FOUR, version=Version(first + 1))


# --- Races ----------------------------------------------------------------------------------------


def _join(open_store: partial[AssignmentStore] | AssignmentStore, topic: str) -> TaskAssignment:
    """What a query over one topic does that is expanded three times."""
    store = open_store() if isinstance(open_store, partial) else open_store
    keeping = AssignmentSync(store, FIXED)
    own = NO_ASSIGNMENT
    for count in (1, 2, 4, 8):
        partitions = ssps({topic: count, "shared": count})
        own = FIXED.group(keeping.previous(own, partitions), partitions)
    store.close()
    return own


def test_queries_that_race_in_threads_all_get_in(place: Place) -> None:
    stores = [place.open() for _ in TOPICS]
    with ThreadPoolExecutor(len(TOPICS)) as pool:
        outcomes = list(pool.map(_join, stores, TOPICS))
    _expect_all(place.open(), outcomes)


def test_queries_that_race_in_processes_all_get_in(tmp_path: Path) -> None:
    place = on_disk(tmp_path)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(TOPICS), mp_context=spawn) as pool:
        outcomes = list(pool.map(partial(_join, partial(open_assignment_store, place.uri)), TOPICS))
    _expect_all(place.open(), outcomes)
    left = [path.name for path in (tmp_path / "assignments" / "orders").iterdir()]
    assert sorted(left) == [f"{number + 1:08}.json" for number in range(len(left))]


def _expect_all(store: AssignmentStore, outcomes: list[TaskAssignment]) -> None:
    stored = store.read()
    assert stored is not None
    for own in outcomes:
        for stream, counts in own.counts.items():
            assert stored.assignment.counts[stream] == counts == (1, 2, 4, 8)
    assert len(stored.assignment.counts) == len(TOPICS) + 1
    assert list(stored.assignment.tasks) == ["Partition 0"]
    store.close()


# --- A network that fails -------------------------------------------------------------------------


LOST = [mishap for mishap in LOST_REPLIES if mishap is not Mishap.GARBLED]


@pytest.mark.parametrize("mishap", LOST)
def test_a_write_whose_reply_was_lost_is_done(remote: Place, mishap: Mishap) -> None:
    store = remote.open()
    first = store.write(TWO, None)
    remote.puts.append(mishap)
    second = store.write(FOUR, first)
    assert not remote.puts
    assert store.read() == StoredAssignment(assignment=FOUR, version=second)
    store.close()


def test_a_write_that_was_refused_and_then_overtaken_is_a_conflict(remote: Place) -> None:
    anne, bert = remote.open(), remote.open()
    first = anne.write(TWO, None)
    bert.write(EIGHT, first)
    remote.puts.append(Mishap.REFUSED)
    with pytest.raises(AssignmentConflictError):
        anne.write(FOUR, first)
    anne.close()
    bert.close()


@pytest.mark.parametrize("mishap", [Mishap.THROTTLED, Mishap.REFUSED, *LOST])
def test_reading_is_tried_again(remote: Place, mishap: Mishap) -> None:
    store = remote.open()
    version = store.write(TWO, None)
    remote.slept.clear()
    remote.reads.extend([mishap] * (ATTEMPTS - 1))
    assert store.read() == StoredAssignment(assignment=TWO, version=version)
    assert len(remote.slept) == ATTEMPTS - 1
    store.close()


def test_at_last_it_is_given_up(remote: Place) -> None:
    store = remote.open()
    store.write(TWO, None)
    remote.reads.extend([Mishap.REFUSED] * ATTEMPTS)
    with pytest.raises(ServiceUnavailableError, match=f"ServiceUnavailable .*{ATTEMPTS} times"):
        store.read()
    store.close()


def test_a_race_that_s3_did_not_judge_is_run_again(moto: str) -> None:
    place = on_s3(moto)
    store = place.open()
    place.puts.append("ConditionalRequestConflict")
    assert store.write(TWO, None) == 1
    store.close()


@pytest.mark.parametrize(
    ("code", "found", "next_step"),
    [
        ("AccessDenied", "permission for", "allow "),
        ("InvalidAccessKeyId", "credentials from AWS's default chain", "the environment"),
        ("ExpiredToken", "credentials from AWS's default chain", "the environment"),
    ],
)
def test_missing_access_is_reported_with_its_remedy(
    remote: Place, code: str, found: str, next_step: str
) -> None:
    forget_providers()  # those of other tests would be asked for other keys, for half a minute
    store = remote.open()
    first = store.write(TWO, None)
    remote.reads.append(code)
    with pytest.raises(AccessError) as caught:
        store.read()
    assert caught.value.subject == f"assignment store {remote.uri}"
    assert found in caught.value.expected
    assert next_step in caught.value.next_step
    remote.puts.append("AccessDenied")
    with pytest.raises(AccessError, match=r"s3:PutObject|dynamodb:PutItem"):
        store.write(FOUR, first)
    store.close()


# --- As users open them ---------------------------------------------------------------------------


@pytest.mark.parametrize("make", [on_s3, on_dynamodb])
def test_the_default_chain_decides_where_and_as_whom(
    make: Callable[[str], Place], moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make(moto)
    for name, value in {
        "AWS_ENDPOINT_URL": moto,
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
    }.items():
        monkeypatch.setenv(name, value)
    store = open_assignment_store(place.uri)
    version = store.write(TWO, None)
    store.close()
    again = place.open()
    assert again.read() == StoredAssignment(assignment=TWO, version=version)
    again.close()


def test_without_a_region_the_option_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "none-such")
    with pytest.raises(InvalidOptionsError, match=r"assignmentStore: .*AWS_DEFAULT_REGION"):
        open_assignment_store("dynamodb://table/orders")


def test_a_bucket_that_is_not_there_is_named(moto: str) -> None:
    place = on_s3(moto)
    missing = parse_store_uri("s3://nobody-has-this/team/orders")
    client = aws_client("s3", moto)
    retry = RetrySettings(max_attempts=1, max_backoff=1)
    files = S3Files(s3_folder(missing), S3Calls(client, s3_where(missing), retry=retry))
    store = FileAssignmentStore(missing, files)
    with pytest.raises(
        AssignmentStoreError, match=r"NoSuchBucket.*the bucket nobody-has-this"
    ) as told:
        store.read()
    assert told.value.next_step.startswith("create or restore it")
    client.create_bucket(Bucket="nobody-has-this")
    assert store.read() is None
    files.close()
    place.open().close()


def test_a_table_of_something_else_is_named(moto_dynamodb: str) -> None:
    client = aws_client("dynamodb", moto_dynamodb)
    client.create_table(
        TableName="leases-of-others",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    place = parse_store_uri("dynamodb://leases-of-others/orders")
    retry = RetrySettings(max_attempts=1, max_backoff=1)
    store = DynamoDbAssignmentStore(place, StoreCalls(client, dynamodb_where(place), retry=retry))
    with pytest.raises(InvalidRequestError, match="whose only key is name"):
        store.read()
    store.close()


# --- Folders --------------------------------------------------------------------------------------


def test_other_files_in_the_folder_do_not_matter(tmp_path: Path) -> None:
    place = on_disk(tmp_path)
    store = place.open()
    version = store.write(TWO, None)
    folder = tmp_path / "assignments" / "orders"
    for name in (".00000002.json.cut", "notes.json", "7.json", "00000009.json.bak"):
        (folder / name).write_text("{")
    assert store.read() == StoredAssignment(assignment=TWO, version=version)
    assert store.write(FOUR, version) == 2


def test_a_folder_without_its_old_files_lets_no_sleeper_begin_again(tmp_path: Path) -> None:
    place = on_disk(tmp_path)
    store = place.open()
    store.write(EIGHT, store.write(FOUR, store.write(TWO, None)))
    (tmp_path / "assignments" / "orders" / "00000001.json").unlink()
    with pytest.raises(AssignmentConflictError):
        store.write(TWO, None)


def test_a_disk_without_permission_or_links_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = on_disk(tmp_path).open()

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refused)
    with pytest.raises(AccessError, match=r"Operation not permitted.*hard links"):
        store.write(TWO, None)
    assert list((tmp_path / "assignments" / "orders").iterdir()) == []


def test_a_path_through_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "assignments").write_text("a file")
    store = on_disk(tmp_path).open()
    for ask in (store.read, lambda: store.write(TWO, None)):
        with pytest.raises(AssignmentStoreError, match="NotADirectoryError"):
            ask()


@pytest.mark.parametrize(
    ("uri", "package"), [("gs://b/x", "gcsfs"), ("abfs://c/x", "adlfs"), ("abfss://c/x", "adlfs")]
)
def test_a_missing_package_is_named(
    uri: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if it were not installed, wherever it is.
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InvalidOptionsError, match=f"pip install {package}"):
        open_assignment_store(uri)


def test_errors_of_a_storage_are_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    store = in_memory().open()

    def refused(*_: object, **__: object) -> None:
        raise PermissionError("403 Forbidden for https://user:s3cr3t@storage")

    monkeypatch.setattr(fsspec.implementations.memory.MemoryFileSystem, "ls", refused)
    with pytest.raises(AccessError) as caught:
        store.read()
    assert "s3cr3t" not in str(caught.value)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no route")

    monkeypatch.setattr(fsspec.implementations.memory.MemoryFileSystem, "ls", broken)
    with pytest.raises(ServiceUnavailableError, match=r"RuntimeError \(no route\)"):
        store.read()
