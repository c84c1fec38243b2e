"""The state of a checkpoint while its query writes it, and the way out of a damaged one."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.operations.commands.watch import CheckpointReader
from spark_ssp.operations.inspection.checkpoint_folder import (
    CheckpointFolderError,
    DamagedFileError,
    Folder,
    Listing,
    open_folder,
)
from spark_ssp.operations.inspection.spark_checkpoint import (
    Recovery,
    find_recovery,
    read_checkpoint,
)
from tests.support.operations.checkpoints import WrittenCheckpoint
from tests.support.operations.reports import kafka_end_offset


class RunningQuery:
    """The folder of a checkpoint, in which each listing is followed by another batch."""

    def __init__(self, checkpoint: WrittenCheckpoint) -> None:
        checkpoint.path.mkdir(exist_ok=True)
        self._checkpoint = checkpoint
        self._folder = open_folder(str(checkpoint.path), ConnectionOptions(region="us-east-1"))
        self._next = 0

    def listing(self, path: str = "") -> Listing:
        found = self._folder.listing(path)
        self._checkpoint.plan(self._next, kafka_end_offset("orders", 1, self._next), 1)
        self._checkpoint.commit(self._next, 1)
        self._next += 1
        return found

    def below(self, path: str) -> Folder:
        return self._folder.below(path)

    def read(self, path: str) -> bytes:
        return self._folder.read(path)

    def modified_ms(self, path: str) -> int | None:
        return self._folder.modified_ms(path)

    def close(self) -> None:
        self._folder.close()


def test_a_batch_that_is_committed_meanwhile_is_no_damage(tmp_path: Path) -> None:
    folder = RunningQuery(WrittenCheckpoint(path=tmp_path))
    found = [read_checkpoint(folder, "orders") for _ in range(3)]
    assert [one.committed for one in found] == [None, 2, 5]
    assert all(one.planned is not None for one in found)


class PurgedFolder(RunningQuery):
    """A checkpoint, of which Spark deletes the oldest batch after each listing of batches."""

    def listing(self, path: str = "") -> Listing:
        found = super().listing(path)
        if path == "offsets":
            (self._checkpoint.path / path / "0").unlink(missing_ok=True)
        return found


class ForgetfulQuery(RunningQuery):
    """A checkpoint in S3, in which Spark keeps one batch, and commits another after the first few
    listings."""

    def __init__(self, checkpoint: WrittenCheckpoint, more: int) -> None:
        super().__init__(checkpoint)
        super().listing()
        self._more = more

    def listing(self, path: str = "") -> Listing:
        if path != "offsets" or not self._more:
            return self._folder.listing(path)
        self._more -= 1
        found = super().listing(path)
        for log in ("offsets", "commits"):
            (self._checkpoint.path / log / str(self._next - 2)).unlink()
        return found

    def read(self, path: str) -> bytes:
        if not (self._checkpoint.path / path).exists():
            raise CheckpointFolderError("s3", found="NoSuchKey", expected="it", next_step="none")
        return super().read(path)


def test_a_batch_that_is_deleted_while_it_is_read_is_no_damage(tmp_path: Path) -> None:
    first, second, third = (WrittenCheckpoint(path=tmp_path / name) for name in "abc")
    assert read_checkpoint(ForgetfulQuery(first, 2), "orders").committed == 2
    with pytest.raises(ServiceUnavailableError, match="minBatchesToRetain"):
        read_checkpoint(ForgetfulQuery(second, 99), "orders")
    folder = ForgetfulQuery(third, 0)
    (third.path / "commits" / "0").write_text("")
    with pytest.raises(DamagedFileError, match="commits/0"):
        read_checkpoint(folder, "orders")


def test_a_batch_that_is_purged_meanwhile_is_left_out(tmp_path: Path) -> None:
    folder = PurgedFolder(WrittenCheckpoint(path=tmp_path))
    reader = CheckpointReader(folder, "orders")
    for _ in range(2):
        folder.listing()
    assert [one.batch_id for one in reader.read_new(10)] == [1, 2]
    (tmp_path / "offsets" / "4").write_text("")
    with pytest.raises(CheckpointFolderError):
        reader.read_new(10)


@pytest.mark.parametrize(
    ("offsets", "commits", "bad", "batch", "is_committed", "delete", "repeated"),
    [
        # The newest batch is planned: the others are intact.
        ((42, 43, 44), (42, 43), {"offsets/44"}, 43, True, ("offsets/44",), ()),
        # It is committed, so its records come again.
        (
            (42, 43, 44),
            (42, 43, 44),
            {"offsets/44"},
            43,
            True,
            ("offsets/44", "commits/44"),
            (44,),
        ),
        # Only its commit is damaged: it runs again as it was.
        ((42, 43, 44), (42, 43, 44), {"commits/44"}, 44, False, ("commits/44",), (44,)),
        # The start of the planned batch is gone, and so is that batch.
        (
            (42, 43, 44),
            (42, 43),
            {"offsets/43"},
            42,
            True,
            ("offsets/43", "offsets/44", "commits/43"),
            (43,),
        ),
        # The batch after it was planned, so it had ended.
        ((42, 43), (42,), {"commits/42"}, 43, False, ("commits/42",), ()),
        # A first batch needs none before it.
        ((0, 1), (), {"offsets/1"}, 0, False, ("offsets/1",), ()),
        # Asynchronous progress tracking commits some batches only.
        ((5, 6, 7), (5,), {"offsets/7"}, 6, False, ("offsets/7",), ()),
        ((5, 6, 7), (5,), {"offsets/5"}, 7, False, (), ()),
    ],
)
def test_the_way_out_of_a_damaged_checkpoint(
    offsets: tuple[int, ...],
    commits: tuple[int, ...],
    bad: set[str],
    batch: int,
    is_committed: bool,
    delete: tuple[str, ...],
    repeated: tuple[int, ...],
) -> None:
    found = find_recovery(offsets, commits, lambda name: name not in bad)
    assert found == Recovery(
        batch=batch, is_committed=is_committed, delete=delete, repeated=repeated
    )
    # Only a batch that is planned anew has other records, which a sink may leave out.
    assert ("file sink" in str(found)) == any(f"offsets/{n}" in delete for n in repeated)
    everything = {f"{log}/{n}" for log in ("offsets", "commits") for n in range(50)}
    assert find_recovery(offsets, commits, lambda name: name not in everything) is None
