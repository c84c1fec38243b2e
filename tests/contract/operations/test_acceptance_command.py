"""`spark-ssp acceptance` over HTTP: on the embedded service, kinesis-mock and moto."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import boto3
import pytest

from spark_ssp.operations.acceptance.rules import Check
from spark_ssp.testing.kinesis import ManualClock
from spark_ssp.testing.kinesis.state.faults import AccessDenied
from tests.contract.operations.conftest import KEYS, Cloud
from tests.contract.services import Quirk, Service
from tests.support.operations.command import Run, run

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


def test_other_services(service: Service) -> None:
    """The checks that fail are the known faults of the service."""

    def wait(seconds: float) -> None:
        service.advance(int(seconds * 1000) + 1)

    done = run(
        "acceptance",
        "--yes",
        "--json",
        "--region=us-east-1",
        f"--endpoint-url={service.client.meta.endpoint_url}",
        now_ms=service.now_ms,
        sleep=wait,
        environment=KEYS,
    )
    document = done.document()
    assert document["failures"] == []
    found = results(document)
    faults = {check for quirk in QUIRKS if service.has(quirk) for check in QUIRKS[quirk]}
    assert {name for name, result in found.items() if result == "failed"} == named(faults)
    lacking = AUTO if service.has(Quirk.KEYS_PLACE_ALL_RECORDS) else ()
    assert {n for n, result in found.items() if result == "not supported"} == named(lacking)
    assert done.code == (1 if faults else 0)
    names = service.client.list_streams(Limit=1000)["StreamNames"]
    assert [name for name in names if name.startswith("spark-ssp-")] == []


def test_moto_deletes_what_was_made(moto: str) -> None:
    """moto's Kinesis deviates in much; its DynamoDB does not."""
    clock = ManualClock()
    done = run(
        "acceptance",
        "--yes",
        "--json",
        "--lease-table",
        "--fan-out",
        "--region=us-east-1",
        f"--endpoint-url={moto}",
        f"--dynamodb-endpoint-url={moto}",
        "--option=retry.maxAttempts=1",
        now_ms=clock.now_ms,
        sleep=advancing(clock),
        environment=KEYS,
    )
    assert done.code == 1
    found = results(done.document())
    assert (found["leases"], found["numbers"]) == ("passed", "passed")
    client = boto3.client(
        "kinesis",
        endpoint_url=moto,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    names = client.list_streams()["StreamNames"]
    client.close()
    assert [name for name in names if name.startswith("spark-ssp-")] == []
