"""Plans under a root in S3: written, read, refused, and what is told where it does not work."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any, Literal

import pytest

from spark_ssp.common.aws import clients as aws_clients
from spark_ssp.common.errors import AccessError, IncompatibleStateError, ServiceUnavailableError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.planner import PlanConflictError, PlanStoreError
from spark_ssp.planner.planning.plan import to_text
from spark_ssp.planner.planning.plan_history import RecordedPlan, newest, record
from tests.support.fakes.assignment_stores import REGION, Queue, aws_client, hook
from tests.support.leases.stores import Mishap
from tests.support.pipelines.examples import made_plan, recorded_at_once

_numbers = count()
_KEY = "AKIASOMEBODYSKEY0001"
_SECRET = "s3cr3t/with+slashes"
_TOKEN = "t0ken/with+slashes"


@pytest.fixture
def client(moto: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of the S3 that AWS's default chain leads to."""
    for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto)
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", _KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", _SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", _TOKEN)
    return aws_client("s3", moto)


@pytest.fixture
def bucket(client: Any) -> str:
    """A new bucket."""
    name = f"plans-{next(_numbers)}"
    client.create_bucket(Bucket=name)
    return name


@pytest.fixture(params=["s3a", "s3", "s3n"])
def root(request: pytest.FixtureRequest, bucket: str) -> str:
    """A root that is not there yet, by each scheme."""
    return f"{request.param}://{bucket}/team/a root/"


def _keys(client: Any, bucket: str) -> list[str]:
    return [entry["Key"] for entry in client.list_objects_v2(Bucket=bucket).get("Contents", ())]


# --- Reading and writing --------------------------------------------------------------------------


def test_plans_are_numbered_and_the_newest_counts(root: str, bucket: str, client: Any) -> None:
    assert newest(root) is None
    first = record(root, made_plan(), after=None)
    assert newest(root) == first == RecordedPlan(number=1, plan=made_plan())
    second = record(root, made_plan(8), after=first)
    assert newest(root) == second == RecordedPlan(number=2, plan=made_plan(8))
    assert _keys(client, bucket) == ["team/a root/_plans/1.json", "team/a root/_plans/2.json"]
    written = client.get_object(Bucket=bucket, Key="team/a root/_plans/1.json")["Body"].read()
    assert written.decode() == to_text(made_plan())


def test_a_bucket_may_be_the_root(bucket: str, client: Any) -> None:
    first = record(f"s3a://{bucket}", made_plan(), after=None)
    assert newest(f"s3a://{bucket}/") == first
    assert _keys(client, bucket) == ["_plans/1.json"]


def test_what_lies_beside_the_plans_is_left_alone(bucket: str, client: Any) -> None:
    root = f"s3a://{bucket}/delays"
    others = ["_plans/01.json", "_plans/notes", "_plans/old/7.json", "_plans-2/8.json"]
    others.append("stages/late/offsets/9.json")
    for key in others:
        client.put_object(Bucket=bucket, Key=f"delays/{key}", Body=b"?")
    assert newest(root) is None
    assert record(root, made_plan(), after=None) == newest(root)
    for key in others:
        assert client.get_object(Bucket=bucket, Key=f"delays/{key}")["Body"].read() == b"?"


def test_a_plan_that_this_version_did_not_write_is_refused(bucket: str, client: Any) -> None:
    client.put_object(Bucket=bucket, Key="delays/_plans/1.json", Body=b"\xff{")
    with pytest.raises(IncompatibleStateError, match="text that is not JSON"):
        newest(f"s3a://{bucket}/delays")


# --- Two runs -------------------------------------------------------------------------------------


def test_a_plan_that_another_run_recorded_meanwhile_is_not_overwritten(root: str) -> None:
    first = record(root, made_plan(), after=None)
    with pytest.raises(PlanConflictError, match="found plan 1, recorded by another run since"):
        record(root, made_plan(8), after=None)
    assert newest(root) == first


def test_of_many_who_record_at_once_one_wins(bucket: str, client: Any) -> None:
    many, root = 6, f"s3a://{bucket}/delays"
    found = recorded_at_once(root, many)
    won = [one for one in found if isinstance(one, RecordedPlan)]
    assert won == [newest(root)]
    assert _keys(client, bucket) == ["delays/_plans/1.json"]


def test_a_run_that_read_too_early_is_rejected_by_s3(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The condition is the write's own: what was listed before it may be old."""
    root = f"s3a://{bucket}/delays"
    first = record(root, made_plan(), after=None)
    looks: Iterator[list[str]] = iter([[]])
    monkeypatch.setattr(
        "spark_ssp.common.aws.store.S3Files.names", lambda _: next(looks, ["1.json"])
    )
    with pytest.raises(PlanConflictError, match="found plan 1"):
        record(root, made_plan(8), after=None)
    looks = iter([[]])
    assert record(root, made_plan(), after=None) == first


# --- What goes wrong ------------------------------------------------------------------------------


@pytest.fixture
def mishaps(client: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Queue, Queue]:
    """What the next calls that read, and that put, meet. Nobody waits before the next attempt."""
    reads: Queue = deque()
    puts: Queue = deque()

    def create_client(service: Literal["s3"], options: ConnectionOptions) -> Any:
        made = aws_clients.create_client(service, options)
        hook(made, reads, puts)
        return made

    monkeypatch.setattr("spark_ssp.common.aws.store.create_client", create_client)
    monkeypatch.setattr("spark_ssp.common.aws.service_calls.backoff", lambda *_: 0.0)
    return reads, puts


@pytest.mark.parametrize("mishap", [Mishap.FAILED, Mishap.TIMED_OUT, Mishap.DROPPED])
def test_a_write_whose_reply_was_lost_is_done(
    bucket: str, mishaps: tuple[Queue, Queue], mishap: Mishap
) -> None:
    root = f"s3a://{bucket}/delays"
    mishaps[1].append(mishap)
    assert record(root, made_plan(), after=None) == newest(root)
    assert not mishaps[1]


def test_a_race_that_s3_did_not_judge_is_run_again(
    bucket: str, mishaps: tuple[Queue, Queue]
) -> None:
    mishaps[1].append("ConditionalRequestConflict")
    assert record(f"s3a://{bucket}/delays", made_plan(), after=None).number == 1


def test_a_service_that_does_not_answer_is_reported(
    bucket: str, mishaps: tuple[Queue, Queue]
) -> None:
    mishaps[0].extend([Mishap.REFUSED] * ConnectionOptions().retry_max_attempts)
    with pytest.raises(ServiceUnavailableError, match=r"ServiceUnavailable .*8 times"):
        newest(f"s3a://{bucket}/delays")


@pytest.mark.parametrize("scheme", ["s3a", "s3"])
def test_a_bucket_that_is_not_there_is_named_and_not_made(scheme: str, client: Any) -> None:
    root = f"{scheme}://no-bucket-of-plans/delays"
    for ask in (partial(newest, root), partial(record, root, made_plan(), after=None)):
        with pytest.raises(PlanStoreError, match="NoSuchBucket") as caught:
            ask()
        assert caught.value.subject == f"plans under {root}"
        assert "correct root or AWS_DEFAULT_REGION" in caught.value.next_step
    assert "no-bucket-of-plans" not in [each["Name"] for each in client.list_buckets()["Buckets"]]


def test_a_missing_permission_is_named(bucket: str, mishaps: tuple[Queue, Queue]) -> None:
    reads, puts = mishaps
    root = f"s3a://{bucket}/delays"
    reads.append("AccessDenied")
    with pytest.raises(AccessError, match="allow s3:ListBucket on the bucket") as caught:
        newest(root)
    assert caught.value.subject == f"plans under {root}"
    puts.append("AccessDenied")
    with pytest.raises(AccessError, match="allow s3:PutObject on the bucket"):
        record(root, made_plan(), after=None)
    assert newest(root) is None


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "ExpiredToken", "SignatureDoesNotMatch"])
def test_credentials_are_in_no_error_no_log_and_no_plan(
    bucket: str,
    mishaps: tuple[Queue, Queue],
    client: Any,
    code: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    root = f"s3a://{bucket}/delays"
    mishaps[0].append(code)
    with pytest.raises(AccessError, match="credentials from AWS's default chain") as caught:
        newest(root)
    record(root, made_plan(), after=None)
    written = client.get_object(Bucket=bucket, Key="delays/_plans/1.json")["Body"].read().decode()
    for text in (str(caught.value), written, caplog.text):
        assert [one for one in (_KEY, _SECRET, _TOKEN) if one in text] == []
