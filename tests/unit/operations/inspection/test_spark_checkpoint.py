"""The state of a checkpoint while its query writes it, and the way out of a damaged one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    """A checkpoint in S3, in which Spark keeps two batches, and commits two others after the first
    few listings."""

    def __init__(self, checkpoint: WrittenCheckpoint, more: int) -> None:
        super().__init__(checkpoint)
        self._commit_two()
        self._more = more

    def _commit_two(self) -> None:
        super().listing()
        super().listing()

    def listing(self, path: str = "") -> Listing:
        if path != "offsets" or not self._more:
            return self._folder.listing(path)
        self._more -= 1
        found = self._folder.listing(path)
        self._commit_two()
        for log, batch in product(("offsets", "commits"), (self._next - 4, self._next - 3)):
            (self._checkpoint.path / log / str(batch)).unlink()
        return found

    def read(self, path: str) -> bytes:
        if not (self._checkpoint.path / path).exists():
            raise CheckpointFolderError("s3", found="NoSuchKey", expected="it", next_step="none")
        return super().read(path)


def test_a_batch_that_is_deleted_while_it_is_read_is_no_damage(tmp_path: Path) -> None:
    first, second, third = (WrittenCheckpoint(path=tmp_path / name) for name in "abc")
    assert read_checkpoint(ForgetfulQuery(first, 2), "orders").committed == 5
    with pytest.raises(ServiceUnavailableError, match="minBatchesToRetain"):
        read_checkpoint(ForgetfulQuery(second, 99), "orders")
    folder = ForgetfulQuery(third, 0)
    (third.path / "commits" / "1").write_text("")
    with pytest.raises(DamagedFileError, match="commits/1"):
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


# --- Damaged files --------------------------------------------------------------------------------


OFFSETS: Final = f'v1\n{{"batchTimestampMs": 7}}\n{json.dumps(kafka_end_offset("orders", 1, 7))}'
COMMIT: Final = 'v1\n{"nextBatchWatermarkMs": 0}'


class Files(Folder):
    """The files of a checkpoint, by their names."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = {"metadata": '{"id": "query-1"}', **texts}

    def listing(self, path: str = "") -> Listing:
        begin = f"{path}/" if path else ""
        names = [name.removeprefix(begin) for name in self.texts if name.startswith(begin)]
        files = tuple(name for name in names if "/" not in name)
        folders = {name.partition("/")[0] for name in names} - {*files}
        return Listing(folders=tuple(sorted(folders)), files=files)

    def below(self, path: str) -> Folder:
        raise NotImplementedError

    def read(self, path: str) -> bytes:
        return self.texts[path].encode()

    def modified_ms(self, path: str) -> int | None:
        return None

    def close(self) -> None:
        pass


def batches_of(texts: Mapping[str, str], log: str) -> list[int]:
    return sorted(int(name.split("/")[1]) for name in texts if name.startswith(log))


def starts(texts: Mapping[str, str]) -> bool:
    """Return whether Spark starts: `MicroBatchExecution.populateStartOffsets`."""
    offsets, commits = batches_of(texts, "offsets"), batches_of(texts, "commits")
    needed = {f"offsets/{n}" for n in (offsets[-1], offsets[-1] - 1) if n >= 0} if offsets else {}
    if any(texts.get(name) != OFFSETS for name in needed):
        return False
    return not commits or texts[f"commits/{commits[-1]}"] == COMMIT


@given(
    first=st.integers(0, 3),
    logs=st.lists(
        st.tuples(
            st.sampled_from([OFFSETS] * 6 + ["", 'v1\n{"batchT', OFFSETS[:-20], "\0" * 50]),
            st.sampled_from([COMMIT] * 6 + ["", 'v1\n{"nextB', "v1\n[]", "v1\n\n{}", "\0" * 20]),
        ),
        min_size=1,
        max_size=5,
    ),
    is_committed=st.booleans(),
    lost=st.none() | st.integers(0, 8),
)
def test_a_checkpoint_from_which_spark_does_not_start_is_damaged_and_its_way_out_starts(
    first: int, logs: list[tuple[str, str]], is_committed: bool, lost: int | None
) -> None:
    texts: dict[str, str] = {}
    for batch, (offsets, commit) in enumerate(logs, first):
        texts |= {f"offsets/{batch}": offsets, f"commits/{batch}": commit}
    if not is_committed:
        del texts[f"commits/{first + len(logs) - 1}"]
    texts.pop(f"offsets/{lost}", None)
    try:
        read_checkpoint(Files(texts), "orders")
    except DamagedFileError:
        found = find_recovery(
            batches_of(texts, "offsets"),
            batches_of(texts, "commits"),
            lambda name: texts.get(name) == (OFFSETS if name.startswith("offsets") else COMMIT),
        )
        if found is not None:
            assert starts({n: text for n, text in texts.items() if n not in found.delete})
    else:
        assert starts(texts)


@pytest.mark.parametrize("kept", [(0, 2), (0, 1, 2, 3, 5), (5, 7), (3, 5, 7), (0, 2, 5)])
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_log_with_gaps_is_that_of_asynchronous_progress_tracking(
    kept: tuple[int, ...], is_committed: bool
) -> None:
    committed = kept if is_committed else kept[:-1]
    texts = {f"offsets/{n}": OFFSETS for n in kept} | {f"commits/{n}": COMMIT for n in committed}
    found = read_checkpoint(Files(texts), "orders")
    assert (found.committed, len(found.notes)) == (committed[-1], 1)


def test_batches_that_asynchronous_progress_tracking_leaves_out_are_not_lost() -> None:
    texts = {f"offsets/{n}": OFFSETS for n in (2, 4, 7)} | {f"commits/{n}": COMMIT for n in (2, 4)}
    sparse = read_checkpoint(Files(texts), "orders")
    assert (sparse.committed, len(sparse.notes)) == (4, 1)
    committed = read_checkpoint(Files({**texts, "commits/7": COMMIT}), "orders")
    assert (committed.committed, len(committed.notes)) == (7, 1)
    with pytest.raises(DamagedFileError, match="offsets/4"):
        read_checkpoint(Files({**texts, "offsets/4": "", "commits/7": COMMIT}), "orders")
    # A batch that is committed was in the log.
    with pytest.raises(DamagedFileError, match="offsets/6"):
        read_checkpoint(Files({**texts, "commits/6": COMMIT, "commits/7": COMMIT}), "orders")


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
            (41, 42, 43, 44),
            (41, 42, 43),
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
        # It leaves others out, and starts from the last one before.
        ((2, 4, 7, 9), (2, 4, 7), {"offsets/9"}, 7, True, ("offsets/9",), ()),
        # A start reads the batch before a committed one too.
        ((4, 5, 6, 7), (4, 5, 6), {"offsets/4", "offsets/7"}, 6, True, ("offsets/7",), ()),
        (
            (3, 4, 5, 6, 7),
            (3, 4, 5, 6),
            {"offsets/5", "offsets/7"},
            4,
            True,
            ("offsets/5", "offsets/6", "offsets/7", "commits/5", "commits/6"),
            (5, 6),
        ),
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
