"""The statuses of readers: published, found by end offsets, removed when a process has ended."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_ssp.common.errors import AccessError
from spark_ssp.common.spark.reader_status import (
    STATUS_OF,
    StatusFile,
    find_statuses,
    parsed,
    status_request,
)

LAG = {"orders": {"maxMillisBehindLatest": 7}}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "private"


def _find(base: Path, *ends: object) -> object:
    found = find_statuses({STATUS_OF.upper(): status_request(ends)}, folder=base)
    return None if found is None else json.loads(found)


def test_other_reads_request_nothing(base: Path) -> None:
    assert find_statuses({"streamName": "orders"}, folder=base) is None


def test_a_status_is_found_by_the_recent_ends_in_any_order_of_keys(base: Path) -> None:
    reader = StatusFile(folder=base)
    assert _find(base, {"v": 1}) == [[]]
    for end in range(10):
        reader.publish({"v": 1, "at": end}, LAG | {"end": {"n": end}})
    newest, third = (LAG | {"end": {"n": end}} for end in (9, 2))
    # Beside the newest, that of the end offset.
    assert _find(base, {"at": 9, "v": 1}, {"v": 1, "at": 2}) == [
        [[newest, newest]],
        [[newest, third]],
    ]
    assert _find(base, {"v": 1, "at": 1}) == [[]], "an end of ten batches ago"
    reader.remove()
    assert _find(base, {"v": 1, "at": 9}) == [[]]
    assert not (base / "statuses").exists()


def test_readers_of_equal_ends_are_all_found(base: Path) -> None:
    one, other = StatusFile(folder=base), StatusFile(folder=base)
    one.publish({}, {"one": {}})
    other.publish({}, {"other": {}})
    (found,) = json.loads(find_statuses({STATUS_OF: status_request([{}])}, folder=base) or "")
    assert sorted(str(newest) for newest, _ in found) == ["{'one': {}}", "{'other': {}}"]


def test_the_nearest_reader_comes_first(base: Path) -> None:
    """One query may be batches ahead of another that reads the same; whichever file sorts first."""
    readers = [StatusFile(folder=base) for _ in range(8)]
    for number, reader in enumerate(readers):
        for end in range(1 + number // 2):
            lag = 1000 - 100 * end + number % 2
            reader.publish({"at": end}, {"orders": {"maxMillisBehindLatest": lag}})
    found = json.loads(
        find_statuses({STATUS_OF: status_request([{"at": 0}, {"at": 2}])}, folder=base) or ""
    )
    assert [[newest for newest, _ in readers] for readers in found] == [
        [{"orders": {"maxMillisBehindLatest": lag}} for lag in lags]
        for lags in ([1001, 1000, 901, 900, 801, 800, 701, 700], [801, 800, 701, 700])
    ]


def test_a_status_that_is_published_again_is_the_newest(base: Path) -> None:
    """After triggers without records."""
    reader = StatusFile(folder=base)
    for end, lag in ((1, 5), (2, 6), (2, 7)):
        reader.publish({"at": end}, {"orders": {"maxMillisBehindLatest": lag}})
    five, seven = ({"orders": {"maxMillisBehindLatest": lag}} for lag in (5, 7))
    assert _find(base, {"at": 1}, {"at": 2}) == [[[seven, five]], [[seven, seven]]]


def _killed(base: Path) -> None:
    """Run a reader that is killed while it writes its second status."""
    program = (
        "import os, pathlib, signal, sys\n"
        "from spark_ssp.common.spark.reader_status import StatusFile\n"
        "reader = StatusFile(folder=pathlib.Path(sys.argv[1]))\n"
        "reader.publish({'v': 1}, {'orders': {}})\n"
        "pathlib.Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "reader.publish({'v': 2}, {'orders': {}})\n"
    )
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", program, str(base)], cwd=root, check=False)
    assert len(list((base / "statuses").iterdir())) == 3


def test_the_files_of_a_killed_process_are_stale(
    base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _killed(base)
    assert _find(base, {"v": 1}) == [[]]
    assert not (base / "statuses").exists()

    _killed(base)
    reader = StatusFile(folder=base)
    reader.publish({"v": 3}, LAG)
    assert _find(base, {"v": 1}, {"v": 3}) == [[], [[LAG, LAG]]]
    assert caplog.records == []
    reader.remove()
    assert not (base / "statuses").exists()


def test_a_file_system_without_locks_leaks_nothing(
    base: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOSYS, "no locks")

    monkeypatch.setattr("fcntl.flock", unsupported)
    reader = StatusFile(folder=base)
    before = os.listdir("/dev/fd")
    for _ in range(2):
        reader.publish({}, LAG)
    assert os.listdir("/dev/fd") == before
    assert [record.message[-8:] for record in caplog.records] == ["no locks"]
    assert not (base / "statuses").exists()


def test_a_file_that_cannot_be_removed_is_stale(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = StatusFile(folder=base)
    reader.publish({}, LAG)
    with monkeypatch.context() as failing:
        failing.setattr(Path, "unlink", lambda path, **_: path.rmdir())  # which it is not
        reader.remove()
    assert len(list((base / "statuses").iterdir())) == 2
    assert _find(base, {}) == [[]]
    assert not (base / "statuses").exists()


def test_a_folder_of_others_is_not_used(base: Path, caplog: pytest.LogCaptureFixture) -> None:
    base.mkdir(mode=0o777)
    base.chmod(0o777)
    reader = StatusFile(folder=base)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            reader.publish({}, LAG)
    assert len(caplog.records) == 1
    assert list(base.iterdir()) == []
    with pytest.raises(AccessError, match="folder to which other users have access"):
        _find(base, {})


def test_offsets_of_a_report_in_every_form() -> None:
    offset = {"v": 1, "ok": True, "none": None}
    assert parsed(offset) == parsed(json.dumps(offset)) == parsed(str(offset)) == offset
    assert parsed(None) is None
    assert parsed("None") is None
