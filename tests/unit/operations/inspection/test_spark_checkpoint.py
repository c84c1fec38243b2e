"""The state of a checkpoint while its query writes it."""

from __future__ import annotations

from pathlib import Path

from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.operations.inspection.spark_checkpoint import open_folder, read_checkpoint
from tests.support.operations.checkpoints import WrittenCheckpoint
from tests.support.operations.reports import kafka_end_offset


class RunningQuery:
    """The folder of a checkpoint, in which each listing is followed by another batch."""

    def __init__(self, checkpoint: WrittenCheckpoint) -> None:
        self._checkpoint = checkpoint
        self._folder = open_folder(str(checkpoint.path), ConnectionOptions(region="us-east-1"))
        self._next = 0

    def names(self, path: str = "") -> list[str]:
        found = self._folder.names(path)
        self._checkpoint.plan(self._next, kafka_end_offset("orders", 1, self._next), 1)
        self._checkpoint.commit(self._next, 1)
        self._next += 1
        return found

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
