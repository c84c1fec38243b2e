"""`spark-ssp acceptance` over HTTP: on the embedded service, kinesis-mock and moto."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any, Final

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError
from botocore.httpsession import URLLib3Session

from spark_ssp.operations.acceptance.rules import Check
from spark_ssp.testing.kinesis import ManualClock
from spark_ssp.testing.kinesis.state.faults import AccessDenied
from tests.contract.operations.conftest import KEYS, Cloud
from tests.contract.services import Quirk, Service
from tests.support.operations.command import Run, run
from tests.support.simulation.effort import AMOUNT

QUIRKS: Final[dict[Quirk, tuple[Check, ...]]] = {
    Quirk.ENDING_NUMBER_IS_MAX_LONG: (Check.ENDING_NUMBER,),
    Quirk.FOREIGN_NUMBERS_PASS: (Check.FOREIGN_NUMBER, Check.ERRORS),
    Quirk.LAG_TO_THE_LAST_RECORD: (Check.LAG,),
    Quirk.MADE_UP_ITERATOR_IS_500: (Check.MADE_UP_ITERATOR, Check.ERRORS),
}
"""The checks that fail where a service has these faults."""
AUTO: Final = (Check.AUTO_SUMMARY, Check.AUTO_PLACEMENT, Check.AUTO_KEYLESS)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the report is written."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def advancing(clock: ManualClock) -> Callable[[float], None]:
    """Return a wait that moves the clock."""

    def wait(seconds: float) -> None:
        clock.advance(int(seconds * 1000) + 1)

    return wait


def in_cloud(cloud: Cloud, *options: str, **more: Any) -> Run:
    more = {"now_ms": cloud.clock.now_ms, "sleep": advancing(cloud.clock)} | more
    return cloud.run("acceptance", *options, **more)


def own_tables(cloud: Cloud) -> list[str]:
    """The tables of the acceptance; those of other tests are in the same service."""
    names = cloud.dynamodb.get_paginator("list_tables").paginate().search("TableNames[]")
    return [name for name in names if name.startswith("spark-ssp-acceptance")]


def results(document: Any) -> dict[str, str]:
    return {check["check"]: check["result"] for check in document["checks"]}


def named(checks: tuple[Check, ...] | set[Check]) -> set[str]:
    return {check.name.lower().replace("_", "-") for check in checks}


def test_everything_is_proven_and_deleted(cloud: Cloud, folder: Path) -> None:
    done = in_cloud(cloud, "--yes", "--lease-table", "--fan-out", "--json")
    assert done.code == 0, done.out + done.err
    document = done.document()
    assert set(results(document).values()) == {"passed"}
    assert set(results(document)) == named(set(Check))
    assert document["passed"] is True
    assert document["leftBehind"] == []
    assert cloud.client.list_streams()["StreamNames"] == []
    assert own_tables(cloud) == []
    (file,) = folder.iterdir()
    assert document["report"] == file.name
    text = file.read_text("utf-8")
    arn = cloud.kinesis.state.create_stream("other").arn
    account = arn.split(":")[4]
    # The shards of a stream have twelve digits, too.
    assert account not in re.sub(r"shardId-\d{12}", "", text)
    for absent in ("arn:", "spark-ssp acceptance 1", "local", "127.0.0.1", file.stem):
        assert absent not in text.lower(), absent
    assert "| expiry | an iterator that is older than five minutes has expired | passed |" in text


def test_it_shows_what_it_will_do_and_asks(cloud: Cloud, folder: Path) -> None:
    done = in_cloud(cloud, "--lease-table", "--fan-out")
    assert (done.code, done.out) == (2, "")
    shown = done.err
    for text in (
        "stream spark-ssp-acceptance-",
        "a registered consumer",
        "table spark-ssp-",
        "USD",
    ):
        assert text in shown
    assert f"--region us-east-1 --endpoint-url {cloud.kinesis.endpoint_url}\n" in shown
    assert f"--endpoint-url {cloud.kinesis.dynamodb_endpoint_url}\n" in shown
    assert shown.splitlines()[-1].startswith("spark-ssp: not confirmed, and nothing was created")
    assert cloud.client.list_streams()["StreamNames"] == []
    assert list(folder.iterdir()) == []


def test_what_is_left_is_printed_with_its_command(cloud: Cloud, folder: Path) -> None:
    faults = cloud.kinesis.faults
    for operation in ("DeleteStream", "SplitShard"):
        faults.add(AccessDenied(), operation=operation, count=None)
    try:
        done = in_cloud(cloud, "--yes", "--report=found.md")
    finally:
        faults.clear()
    assert done.code == 1
    (name,) = cloud.client.list_streams()["StreamNames"]
    endpoint = f"--region us-east-1 --endpoint-url {cloud.kinesis.endpoint_url}"
    command = f"  aws kinesis delete-stream --stream-name {name} --enforce-consumer-deletion"
    assert f"{command} {endpoint}" in done.err.splitlines()
    assert f"left behind: stream {name}: AccessDeniedException on DeleteStream" in done.err
    assert "split: AccessDeniedException on SplitShard" in done.out.splitlines()
    assert "1 thing left behind" in done.out
    report = (folder / "found.md").read_text("utf-8")
    assert "- split: AccessDeniedException on SplitShard" in report
    assert "Left behind: 1 stream." in report
    assert name not in report


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_after_the_deletion(
    cloud: Cloud, folder: Path, number: signal.Signals
) -> None:
    wait = advancing(cloud.clock)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 20:
            os.kill(os.getpid(), number)
        wait(seconds)

    # Programs in the background of a shell ignore some signals.
    handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    inherited = signal.signal(number, handler)
    try:
        done = in_cloud(cloud, "--yes", sleep=sleep)
        assert signal.getsignal(number) == handler
    finally:
        signal.signal(number, inherited)
    assert done.code == 130
    assert cloud.client.list_streams()["StreamNames"] == []
    assert "ended by Ctrl-C or a signal" in done.out
    (file,) = folder.iterdir()
    assert "ended by Ctrl-C or a signal" in file.read_text("utf-8")


def test_a_report_that_cannot_be_written_is_noticed_first(cloud: Cloud) -> None:
    done = in_cloud(cloud, "--yes", "--report=absent/report.md")
    assert (done.code, done.out) == (2, "")
    assert "name another file by --report" in done.err
    assert cloud.kinesis.calls.count("CreateStream", stream="absent") == 0
    assert cloud.client.list_streams()["StreamNames"] == []


def in_service(service: Service) -> Run:
    def wait(seconds: float) -> None:
        service.advance(int(seconds * 1000) + 1)

    return run(
        "acceptance",
        "--yes",
        "--json",
        "--region=us-east-1",
        f"--endpoint-url={service.client.meta.endpoint_url}",
        now_ms=service.now_ms,
        sleep=wait,
        environment=KEYS,
    )


def left_in_service(service: Service) -> list[str]:
    return [name for name in service.stream_names() if name.startswith("spark-ssp-")]


def test_other_services(service: Service) -> None:
    """The checks that fail are the known faults of the service."""

    done = in_service(service)
    document = done.document()
    assert document["failures"] == []
    found = results(document)
    faults = {check for quirk in QUIRKS if service.has(quirk) for check in QUIRKS[quirk]}
    assert {name for name, result in found.items() if result == "failed"} == named(faults)
    lacking = AUTO if service.has(Quirk.KEYS_PLACE_ALL_RECORDS) else ()
    assert {n for n, result in found.items() if result == "not supported"} == named(lacking)
    assert done.code == (1 if faults else 0)
    assert left_in_service(service) == []


MOTO: Final = {
    "failed": {
        Check.ERRORS,
        Check.EXPIRED_ITERATOR,
        Check.FOREIGN_NUMBER,
        Check.FUTURE_TIME,
        Check.MADE_UP_ITERATOR,
        Check.PLACEMENT,
        Check.SHARD_END,
    },
    "not supported": set(AUTO),
    "not run": {
        Check.BATCH,
        Check.CHILD_NUMBERS,
        Check.LISTING,
        Check.MERGE,
        Check.NEXT_BATCH,
        Check.PUSHED,
        Check.PUSHED_END,
        Check.PUSHED_QUERY,
        Check.QUERY,
        Check.REPLAY,
        Check.SECOND_SUBSCRIPTION,
    },
}
"""What moto's Kinesis answers otherwise than the API reference says, and so lets a query fail."""


def in_moto(endpoint: str) -> Run:
    clock = ManualClock()
    return run(
        "acceptance",
        "--yes",
        "--json",
        "--lease-table",
        "--fan-out",
        "--region=us-east-1",
        f"--endpoint-url={endpoint}",
        f"--dynamodb-endpoint-url={endpoint}",
        "--option=retry.maxAttempts=3",
        now_ms=clock.now_ms,
        sleep=advancing(clock),
        environment=KEYS,
    )


def left_in_moto(endpoint: str) -> list[str]:
    """The streams and tables of the acceptance."""
    settings: Any = {
        "endpoint_url": endpoint,
        "region_name": "us-east-1",
        "aws_access_key_id": "local",
        "aws_secret_access_key": "local",
    }
    with closing(boto3.client("kinesis", **settings)) as kinesis:
        names = kinesis.list_streams()["StreamNames"]
    with closing(boto3.client("dynamodb", **settings)) as dynamodb:
        names += dynamodb.list_tables()["TableNames"]
    return [name for name in names if name.startswith("spark-ssp-")]


def test_moto(moto: str) -> None:
    """Its Kinesis deviates in much; its DynamoDB does not."""
    done = in_moto(moto)
    assert done.code == 1
    found = results(done.document())
    for result, checks in MOTO.items():
        assert {name for name, one in found.items() if one == result} == named(checks), result
    assert found["leases"] == "passed"
    assert left_in_moto(moto) == []


# --- Faults on the way; those of the embedded service are in the unit tests -----------------------


class Body(BytesIO):
    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        """As the body of urllib3, of which botocore reads it."""
        yield self.read()


def faulty_link(seed: int, faults: Counter[str]) -> Callable[[URLLib3Session, Any], Any]:
    """Return a function that sends requests, and loses one in thirty, its answer, or answers with
    an error."""
    random, send = Random(seed), URLLib3Session.send

    def sent(session: URLLib3Session, request: Any) -> Any:
        fault = random.choices(("lost", "unanswered", "refused", ""), (1, 1, 1, 27))[0]
        faults[fault] += 1
        if fault == "lost":
            raise EndpointConnectionError(endpoint_url=request.url)
        if fault == "refused":
            return AWSResponse(request.url, 500, HTTPHeaders(), Body(b'{"__type": "Failure"}'))
        answer: Any = send(session, request)
        if fault == "unanswered":
            raise ConnectionClosedError(endpoint_url=request.url)
        return answer

    return sent


@pytest.mark.long
@pytest.mark.parametrize("place", ["kinesis-mock", "moto"])
def test_a_faulty_link_to_other_services_leaves_nothing(
    place: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = request.getfixturevalue(place.replace("-", "_"))
    for seed in range(AMOUNT.kills):
        faults: Counter[str] = Counter()
        with monkeypatch.context() as patched:
            patched.setattr(URLLib3Session, "send", faulty_link(seed, faults))
            done = in_moto(found) if place == "moto" else in_service(found)
        left = left_in_moto(found) if place == "moto" else left_in_service(found)
        assert done.code == 1, seed
        assert {"lost", "unanswered", "refused"} <= faults.keys()
        assert (done.document()["leftBehind"], left) == ([], []), seed
