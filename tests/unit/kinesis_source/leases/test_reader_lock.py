"""The lock that keeps two readers of one driver from being one worker."""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from spark_ssp.common.errors import UnsupportedError
from spark_ssp.kinesis_source.leases.lease_worker import (
    PATIENCE_S,
    LeaseWorker,
    ReaderLock,
    lease_worker,
)
from spark_ssp.kinesis_source.options.parse import parse_options


class Clock:
    """Time that passes by sleeping, and in which `meanwhile` is released."""

    def __init__(self) -> None:
        self.now = 0.0
        self.meanwhile: list[ReaderLock] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for lock in self.meanwhile:
            lock.release()


def _acquired(lock: ReaderLock, clock: Clock | None = None) -> bool:
    clock = clock or Clock()
    return lock.acquire(monotonic=clock.monotonic, sleep=clock.sleep)


def test_a_key_is_held_by_one_reader(tmp_path: Path) -> None:
    folder, clock = tmp_path / "locks", Clock()
    first, other = (ReaderLock("1", name, folder=folder) for name in ("orders", "clicks"))
    assert _acquired(first)
    assert not _acquired(ReaderLock("1", "orders", folder=folder), clock)
    assert clock.now >= PATIENCE_S
    assert _acquired(other)
    first.release()
    assert _acquired(first)
    for lock in (first, other):
        lock.release()
        lock.release()
    assert not folder.exists()


def test_a_reader_waits_for_a_stopped_one_to_end(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    first, clock = ReaderLock("orders", folder=folder), Clock()
    assert _acquired(first)
    clock.meanwhile.append(first)
    assert _acquired(ReaderLock("orders", folder=folder), clock)
    assert clock.now < PATIENCE_S


_HOLD = """
import sys, time
from pathlib import Path
from spark_ssp.kinesis_source.leases.lease_worker import ReaderLock
lock = ReaderLock("orders", folder=Path(sys.argv[1]))
print(lock.acquire(monotonic=time.monotonic, sleep=time.sleep), flush=True)
sys.stdin.read()
"""


def test_a_killed_reader_holds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"True\n"
        assert not _acquired(ReaderLock("orders", folder=folder))
        reader.kill()
    assert _acquired(ReaderLock("orders", folder=folder))


def test_a_folder_of_others_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "locks"
    folder.mkdir()
    folder.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert _acquired(ReaderLock("orders", folder=folder))
    assert "cannot be detected" in caplog.text
    assert list(folder.iterdir()) == []
    # As the warning advises.
    folder.rmdir()
    caplog.clear()
    assert _acquired(ReaderLock("orders", folder=folder))
    assert caplog.text == ""
    assert not _acquired(ReaderLock("orders", folder=folder))


LEASED = {"streamName": "orders", "region": "eu-west-1", "applicationName": "orders-etl"}


@pytest.mark.parametrize(
    "ids",
    [
        {},
        {"workerId": "anne"},
        {"processorIdGenerator": "spark_ssp.checkpoint.worker_identity.HostAndQueryGenerator"},
    ],
)
def test_a_second_reader_in_a_driver_needs_its_own_worker_id(
    ids: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark makes two readers for a self-join; each would read only its share of the shards."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def worker(**changes: str) -> LeaseWorker:
        clock, options = Clock(), parse_options(LEASED | ids | changes)
        made = lease_worker(options, monotonic=clock.monotonic, sleep=clock.sleep)
        assert made is not None
        return made

    first = worker()
    with pytest.raises(UnsupportedError, match="a second reader in this driver") as refusal:
        worker()
    assert "leave out applicationName" in refusal.value.next_step
    others = [
        worker(workerId="bert"),
        worker(leaseTable="other"),
        # The table of another account.
        worker(leaseRoleArn="arn:aws:iam::123456789012:role/leases"),
        worker(roleArn="arn:aws:iam::123456789012:role/orders"),
        worker(awsProfile="other"),
        worker(credentialsProvider="my_company.aws:credentials"),
    ]
    first.close()
    others.append(worker())
    for other in others:
        other.close()
    assert list(tmp_path.iterdir()) == []
