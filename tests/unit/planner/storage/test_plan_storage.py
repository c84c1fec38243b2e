"""Roots in S3, Google's and Azure's storage: their parsing and the requests to them."""

from __future__ import annotations

import re
import sys
import uuid
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import botocore.session
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from spark_ssp.common.aws.s3_names import S3Folder
from spark_ssp.common.documents.immutable_files import CONDITIONS
from spark_ssp.common.errors import AccessError, InvalidOptionsError, UnsupportedError
from spark_ssp.planner import PlanConflictError, PlanStoreError
from spark_ssp.planner.storage.plan_history import RecordedPlan, newest, record
from spark_ssp.planner.storage.plan_storage import is_path, s3_folder, shown_root
from tests.support.pipelines.examples import made_plan

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
    with pytest.raises(InvalidOptionsError, match=r"root: found plans under s3a://.*AWS_REGION"):
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
def test_a_package_that_cannot_begin_is_told_without_its_words(
    error: Exception, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setitem(sys.modules, "adlfs", _installed())
    monkeypatch.setattr("fsspec.core.url_to_fs", refuse)
    with pytest.raises((UnsupportedError, PlanStoreError), match=expected) as caught:
        newest("abfs://lake/delays")
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("root", "shown"),
    [
        ("s3a://AKIA:se/cr/et@bucket/x", "s3a://***@bucket/x"),
        ("s3a://AKIA@bucket/x", "s3a://***@bucket/x"),
        ("ftp://u:p@ss@host/x", "ftp://***@host/x"),
        ("hdfs://nn:8020/team/run@2026", "hdfs://nn:8020/team/run@2026"),
        ("s3a://bucket/run@2026", "s3a://bucket/run@2026"),
        ("abfss://lake@acc.dfs.core.windows.net/x", "abfss://lake@acc.dfs.core.windows.net/x"),
        ("abfss://lake:key@acc.dfs.core.windows.net/x", "abfss://***@acc.dfs.core.windows.net/x"),
        ("/mnt/u:p@host/x?y", "/mnt/u:p@host/x?y"),
        ("https://host/x?sig=secret@", "https://host/x?***"),
        ("ftp://u:p?s@host/x", "ftp://***@host/x"),
    ],
)
def test_only_users_passwords_and_queries_are_hidden(root: str, shown: str) -> None:
    assert shown_root(root) == shown
