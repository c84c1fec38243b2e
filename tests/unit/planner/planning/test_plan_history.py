"""Plans beside the checkpoints: on disk, in S3, and in stores of fsspec."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import uuid
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import botocore.session
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from spark_ssp.common.errors import (
    AccessError,
    IncompatibleStateError,
    InvalidOptionsError,
    UnsupportedError,
)
from spark_ssp.common.locations import is_path
from spark_ssp.common.write_once_files import CONDITIONS, S3Folder
from spark_ssp.planner import (
    InvalidPipelineError,
    PartitionCountConflictError,
    Pipeline,
    PlanConflictError,
    PlanContradictionError,
    PlannedPipeline,
    PlanStoreError,
    Services,
)
from spark_ssp.planner.planning.plan import from_text, is_equivalent, to_text
from spark_ssp.planner.planning.plan_history import (
    RecordedPlan,
    newest,
    record,
    s3_folder,
)
from tests.support.fakes.pipeline_services import MemorySystem
from tests.support.pipelines.examples import (
    KnownCounts,
    both,
    made_pipeline,
    made_plan,
    planned,
    recorded_at_once,
)


@pytest.fixture(params=["path", "file", "store"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A root that is not there yet, of every kind."""
    folder = tmp_path / "a root"
    match request.param:
        case "path":
            return str(folder)
        case "file":
            return f"file://{folder}"
        case _:
            return f"memory://{uuid.uuid4().hex}/a root/"


# --- The folder ----------------------------------------------------------------------------------


def test_plans_are_numbered_and_the_newest_counts(root: str) -> None:
    assert newest(root) is None
    first = record(root, made_plan(), after=None)
    assert newest(root) == first == RecordedPlan(number=1, plan=made_plan())
    second = record(root, made_plan(8), after=first)
    assert newest(root) == second == RecordedPlan(number=2, plan=made_plan(8))


def test_a_plan_that_says_the_same_is_not_recorded_again(root: str) -> None:
    first = record(root, made_plan(), after=None)
    found = planned(made_pipeline(transformed=True), {"a": 4, "b": 3, "p-made": 4, "out": 9}).plan
    assert found != first.plan
    assert record(root, found, after=first) == first == newest(root)


def test_a_plan_that_another_run_recorded_meanwhile_is_not_overwritten(root: str) -> None:
    record(root, made_plan(), after=None)
    with pytest.raises(PlanConflictError) as caught:
        record(root, made_plan(8), after=None)
    assert "found plan 1, recorded by another run since" in str(caught.value)
    assert "plan again" in caught.value.next_step
    assert newest(root) == RecordedPlan(number=1, plan=made_plan())


def test_the_same_plan_recorded_meanwhile_is_no_conflict(root: str) -> None:
    first = record(root, made_plan(), after=None)
    assert record(root, made_plan(), after=None) == first == newest(root)


def test_a_plan_that_says_what_was_recorded_is_refused_after_another_was(root: str) -> None:
    """It would run by counts that are no longer the newest plan's."""
    first = record(root, made_plan(), after=None)
    second = record(root, made_plan(8), after=first)
    with pytest.raises(PlanConflictError, match="found plan 2, recorded by another run"):
        record(root, made_plan(), after=first)
    assert record(root, made_plan(8), after=first) == second == newest(root)


def test_plans_that_are_gone_are_noticed(tmp_path: Path) -> None:
    first = record(str(tmp_path), made_plan(), after=None)
    (tmp_path / "_plans" / "1.json").unlink()
    with pytest.raises(PlanConflictError, match="found no plan any more"):
        record(str(tmp_path), made_plan(8), after=first)


def test_ten_plans_are_distinguished_from_two(root: str) -> None:
    before = None
    for number in range(1, 12):
        before = record(root, made_plan(2 * number), after=before)
    assert newest(root) == before == RecordedPlan(number=11, plan=made_plan(22))


def test_a_plan_that_this_version_did_not_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "_plans"
    folder.mkdir()
    for content in (b"\xff{", b"[" * 100_000):
        (folder / "1.json").write_bytes(content)
        with pytest.raises(IncompatibleStateError, match="text that is not JSON") as caught:
            newest(str(tmp_path))
        assert caught.value.subject == f"file _plans/1.json under {tmp_path}"
        assert caught.value.next_step.startswith("if another run may be recording")
    (folder / "2.json").symlink_to(folder / "1.json")
    os.mkfifo(folder / "3.json")
    for name in ("3.json", "2.json"):
        with pytest.raises(PlanStoreError, match="a pipe" if name == "3.json" else "a symbolic"):
            newest(str(tmp_path))
        (folder / name).unlink()


def test_a_root_that_cannot_be_opened_shows_no_password() -> None:
    with pytest.raises((UnsupportedError, PlanStoreError)) as caught:
        newest("hdfs:/user:pw@x")
    assert "hdfs:/***@x" in str(caught.value)
    assert "pw" not in str(caught.value)


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "_plans"
    folder.mkdir()
    for name in ("0.json", "01.json", "2.json.tmp", ".x.3.json", "readme"):
        (folder / name).write_text("?")
    assert newest(str(tmp_path)) is None
    record(str(tmp_path), made_plan(), after=None)
    assert from_text((folder / "1.json").read_text()) == made_plan()


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_a_plan_has_the_mode_that_the_umask_says_and_nothing_else_is_left(
    tmp_path: Path, umask: int, mode: int
) -> None:
    before = os.umask(umask)
    try:
        record(str(tmp_path), made_plan(), after=None)
    finally:
        os.umask(before)
    assert os.listdir(tmp_path / "_plans") == ["1.json"]
    assert stat.S_IMODE((tmp_path / "_plans" / "1.json").stat().st_mode) == mode
    assert (tmp_path / "_plans" / "1.json").read_text() == to_text(made_plan())


def _no_links(*_: Any) -> None:
    raise PermissionError(1, "Operation not permitted")


def test_a_mount_without_links_is_written_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", _no_links)
    first = record(str(tmp_path), made_plan(), after=None)
    assert newest(str(tmp_path)) == first
    with pytest.raises(PlanConflictError):
        record(str(tmp_path), made_plan(8), after=None)
    assert os.listdir(tmp_path / "_plans") == ["1.json"]


def test_a_full_disk_leaves_the_plan_before_as_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a mount without links, where the file is created under its name."""
    first = record(str(tmp_path), made_plan(), after=None)
    monkeypatch.setattr(os, "link", _no_links)
    synced: list[int] = []

    def fill(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 2:  # after the draft
            os.truncate(descriptor, 50)
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fill)
        with pytest.raises(PlanStoreError, match="No space left"):
            record(str(tmp_path), made_plan(8), after=first)
    assert os.listdir(tmp_path / "_plans") == ["1.json"]
    assert record(str(tmp_path), made_plan(8), after=first) == newest(str(tmp_path))


@pytest.mark.parametrize(("name", "decoded"), [("a%20b", "a b"), ("run#2", "run"), ("a?b", "a")])
def test_plans_of_a_decoded_root_are_not_overlooked(
    tmp_path: Path, name: str, decoded: str
) -> None:
    """Version 0.1.0 wrote them there; or they are those of another root."""
    root = f"file://{tmp_path}/{name}"
    first = record(root, made_plan(), after=None)
    assert os.listdir(tmp_path) == [name]
    (tmp_path / name).rename(tmp_path / decoded)
    with pytest.raises(PlanStoreError) as caught:
        newest(root)
    assert caught.value.next_step.endswith(f"pass the root as {tmp_path / name}")
    assert newest(str(tmp_path / name)) is None
    (tmp_path / decoded).rename(tmp_path / name)
    assert newest(root) == first


def test_of_many_who_record_at_once_one_wins(tmp_path: Path) -> None:
    many, root = 8, str(tmp_path / "new")
    found = recorded_at_once(root, many)
    won = [one for one in found if isinstance(one, RecordedPlan)]
    assert won == [newest(root)]


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(PlanStoreError, match=r"cannot be read \(NotADirectoryError: Not a dir"):
        newest(str(file))
    with pytest.raises(PlanStoreError, match="cannot be written"):
        record(str(file), made_plan(), after=None)


@pytest.mark.parametrize(
    "root",
    ["nothing-like-it://user:secret@there/a", "nothing-like-it:/a", "nothing-like-it:a"],
)
def test_a_store_that_nothing_reaches_is_refused(root: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        newest(root)
    assert "a root of nothing-like-it" in str(caught.value)
    assert "the package that fsspec needs for nothing-like-it" in caught.value.next_step
    assert "secret" not in str(caught.value)


def test_a_store_may_be_named_without_a_host() -> None:
    folder = uuid.uuid4().hex
    first = record(f"memory:/{folder}", made_plan(), after=None)
    assert newest(f"memory:///{folder}") == first


def test_errors_of_a_stores_own_library_are_translated_by_their_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class AccountError(Exception):
        """Of a package that knows nothing of OSError."""

    def refuse(*args: object, **options: object) -> None:
        raise AccountError("key AKIA")

    root = f"memory://{uuid.uuid4().hex}/root"
    for method in ("pipe_file", "ls"):
        monkeypatch.setattr(f"fsspec.implementations.memory.MemoryFileSystem.{method}", refuse)
        with pytest.raises(PlanStoreError, match="AccountError") as caught:
            record(root, made_plan(), after=None)
        assert "AKIA" not in str(caught.value)
        assert isinstance(caught.value.__cause__, OSError)


# --- What is worth a new plan --------------------------------------------------------------------


def test_counts_on_which_state_rests_are_worth_recording() -> None:
    assert not is_equivalent(made_plan(), made_plan(8))
    with_stage = made_pipeline()
    with_stage.input("kafka", "c").output("kafka", "copy")
    assert not is_equivalent(made_plan(), planned(with_stage, {"a": 4, "b": 3, "c": 1}).plan)


def test_shards_and_reasons_are_not(pipeline: Pipeline) -> None:
    pipeline.input("kinesis", "s").partition_by("k", partitions=3).output("kafka", "out")
    one = planned(pipeline, {"kinesis/s": 2}).plan
    other = planned(pipeline, {"kinesis/s": 5, "p-s-by-k": 3, "out": 1}).plan
    assert one != other
    assert is_equivalent(one, other)


# --- Planning with a root ------------------------------------------------------------------------


def _at(root: str, pipeline: Pipeline, counts: dict[str, int]) -> PlannedPipeline:
    return pipeline.plan(KnownCounts(counts), root=root)


COUNTS = {"a": 4, "b": 3, "out": 1}


def test_a_first_run_records_what_it_applied(root: str) -> None:
    kafka = MemorySystem(streams=dict(COUNTS))
    services = Services({"kafka": kafka})
    first = made_pipeline().plan(services, root=root)
    assert newest(root) is None
    first.apply(services)
    assert newest(root) == RecordedPlan(number=1, plan=first.plan)
    again = made_pipeline().plan(services, root=root)
    again.apply(services)
    assert newest(root) == again.recorded == RecordedPlan(number=1, plan=first.plan)


def test_nothing_is_recorded_where_the_plan_cannot_be_applied(tmp_path: Path) -> None:
    kafka = MemorySystem(streams={"a": 4, "b": 3})
    services = Services({"kafka": kafka})
    with pytest.raises(PartitionCountConflictError):
        made_pipeline().plan(services, root=str(tmp_path)).apply(services)
    assert newest(str(tmp_path)) is None


def test_an_expansion_by_a_multiple_keeps_the_tasks_and_is_recorded(root: str) -> None:
    _at(root, made_pipeline(), COUNTS).record()
    expanded = _at(root, made_pipeline(), {**COUNTS, "a": 8, "p-made": 4})
    a, made = expanded.plan.streams[0], expanded.plan.streams[3]
    assert (a.partitions, a.tasks, made.partitions, made.tasks) == (8, 4, 4, 4)
    expanded.record()
    assert newest(root) == RecordedPlan(number=2, plan=expanded.plan)
    thrice = _at(root, made_pipeline(), {**COUNTS, "a": 24, "p-made": 4})
    assert thrice.plan.streams[0].tasks == 4


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"a": 6}, "found 6 partitions; expected 4 or a multiple of it"),
        ({"a": 2}, "found 2 partitions; expected 4 or a multiple of it"),
        ({"p-made": 7}, "stream kafka/p-made: found 7 partitions; expected 4 or a multiple"),
    ],
)
def test_a_count_that_is_no_multiple_contradicts(
    root: str, counts: dict[str, int], expected: str
) -> None:
    """Also where the streams of today do not even agree with each other."""
    _at(root, made_pipeline(), COUNTS).record()
    with pytest.raises(PlanContradictionError) as caught:
        _at(root, made_pipeline(), {**COUNTS, "p-made": 4, **counts})
    assert expected in str(caught.value)
    afresh = "start the pipeline under a new checkpoint root and with other intermediate streams"
    assert afresh in str(caught.value)


def test_counts_that_never_fitted_are_no_contradiction(root: str) -> None:
    """What is new stands against the plan by itself."""
    _at(root, made_pipeline(), COUNTS).record()
    pipeline = made_pipeline()
    pipeline.input("kafka", "c").join(pipeline.input("kafka", "d"), both).output("kafka", "cd")
    with pytest.raises(PartitionCountConflictError) as caught:
        _at(root, pipeline, {**COUNTS, "c": 2, "d": 3})
    assert type(caught.value) is PartitionCountConflictError


def test_another_run_that_recorded_first_is_noticed(root: str) -> None:
    slow = _at(root, made_pipeline(), COUNTS)
    _at(root, made_pipeline(), {**COUNTS, "a": 8}).record()
    with pytest.raises(PlanConflictError):
        slow.record()


def test_a_root_and_a_plan_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipelineError, match="root and recorded"):
        made_pipeline().plan(KnownCounts(COUNTS), root=str(tmp_path), recorded=made_plan())


def test_without_a_root_nothing_is_recorded() -> None:
    made = planned(made_pipeline(), COUNTS)
    made.record()
    assert (made.root, made.recorded) == (None, None)


# --- S3 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("root", "bucket", "path"),
    [
        ("s3a://lake/delays", "lake", "delays/_plans"),
        ("s3://lake/team/delays/", "lake", "team/delays/_plans"),
        ("S3N://lake//team//a root", "lake", "team/a root/_plans"),
        ("s3a://lake.of-all", "lake.of-all", "_plans"),
        ("s3a://lake/100%25?/a#b/a@b", "lake", "100%25?/a#b/a@b/_plans"),
    ],
)
def test_a_root_in_s3_is_read_as_hadoop_reads_it(root: str, bucket: str, path: str) -> None:
    assert s3_folder(root) == S3Folder(bucket=bucket, path=path)
    assert not is_path(root)


@pytest.mark.parametrize(
    "root",
    [
        "s3a:lake/delays",
        "s3a:/lake/delays",
        "s3a:///delays",
        "s3a://Lake/delays",
        "s3a://l/delays",
        "s3a://lake:9000/delays",
        "s3a://lake/../delays",
        "s3a://lake/./delays",
        "s3a://AKIAEXAMPLE:s3cr3t@lake/delays",
        "s3a://AKIAEXAMPLE:s3c/s3cr3t+x@lake/delays",
        "s3a://s3cr3t@lake/delays",
    ],
)
def test_a_root_that_is_none_in_s3_is_refused(root: str) -> None:
    with pytest.raises(PlanStoreError, match="expected s3a://bucket/path") as caught:
        newest(root)
    assert "s3cr3t" not in str(caught.value)
    assert "AKIA" not in str(caught.value)


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing about AWS is to be found on this machine."""
    for name in (
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_PROFILE",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "none-such")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "none-such")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


def test_without_a_region_the_root_is_named(no_aws: pytest.MonkeyPatch) -> None:
    no_aws.setenv("AWS_ACCESS_KEY_ID", "local")
    no_aws.setenv("AWS_SECRET_ACCESS_KEY", "local")
    with pytest.raises(
        InvalidOptionsError, match=r"root: found plans under s3a://.*AWS_DEFAULT_REGION"
    ):
        newest("s3a://lake/delays")


def test_without_credentials_the_default_chain_is_named(no_aws: pytest.MonkeyPatch) -> None:
    no_aws.setenv("AWS_REGION", "us-east-1")
    with pytest.raises(AccessError, match="from AWS's default chain") as caught:
        newest("s3a://lake/delays")
    assert caught.value.subject == "plans under s3a://lake/delays"
    assert "awsAccessKeyId" not in caught.value.next_step
    for name, value in re.findall(r"(AWS_\w+)=(\w+)", caught.value.next_step):
        no_aws.setenv(name, value)
    assert botocore.session.get_session().get_credentials() is not None


# --- By fsspec -----------------------------------------------------------------------------------


class _ObjectStore(MemoryFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """As gcsfs and adlfs do it: what is there is kept only if that is asked for in the package's
    own word; and making folders would make a bucket."""

    condition: dict[str, Any]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.rpartition("://")[2].strip("/")

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **given: Any) -> None:
        asked = given if "overwrite" in self.condition else {"mode": mode}
        super().pipe_file(path, value, mode="create" if asked == self.condition else "overwrite")

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        raise AssertionError("a bucket would be made")


@pytest.fixture(params=sorted(CONDITIONS))
def object_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A root in a store of each scheme in turn."""
    scheme = request.param
    kind = type("Store", (_ObjectStore,), {"condition": dict(CONDITIONS[scheme])})
    monkeypatch.setitem(vars(sys.modules["fsspec.registry"])["_registry"], scheme, kind)
    return f"{scheme}://bucket/{uuid.uuid4().hex}"


def test_googles_and_azures_stores_keep_what_is_there(
    object_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = record(object_store, made_plan(), after=None)
    assert newest(object_store) == first == RecordedPlan(number=1, plan=made_plan())
    second = record(object_store, made_plan(8), after=first)
    # A run that looked before any was there finds them when it writes.
    there, looked = MemoryFileSystem.ls, []

    def ls(*given: Any, **options: Any) -> Any:
        looked.append(given)
        return [] if len(looked) == 1 else there(*given, **options)

    monkeypatch.setattr(_ObjectStore, "ls", ls)
    with pytest.raises(PlanConflictError, match="found plan 2"):
        record(object_store, made_plan(6), after=None)
    assert newest(object_store) == second


@pytest.mark.parametrize(
    ("root", "package"),
    [
        ("gs://bucket/delays", "gcsfs"),
        ("abfss://lake@account.dfs.core.windows.net/delays", "adlfs"),
    ],
)
def test_a_missing_package_is_named(
    root: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if it were not installed, wherever it is.
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnsupportedError, match=f"pip install {package}"):
        newest(root)


def _installed() -> ModuleType:
    module = ModuleType("adlfs")
    module.__spec__ = ModuleSpec("adlfs", None)
    return module


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("no account, key s3cr3t"), "the environment variables of adlfs"),
        (RuntimeError("no token s3cr3t"), r"cannot be read \(OSError: RuntimeError\)"),
    ],
)
def test_a_package_that_cannot_begin_is_reported_without_its_words(
    error: Exception, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setitem(sys.modules, "adlfs", _installed())
    monkeypatch.setattr("fsspec.core.url_to_fs", refuse)
    with pytest.raises((UnsupportedError, PlanStoreError), match=expected) as caught:
        newest("abfs://lake/delays")
    assert "s3cr3t" not in str(caught.value)
