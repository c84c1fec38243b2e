"""Errors of inspected checkpoints."""

from __future__ import annotations

from spark_ssp.common.errors import SspError


class CheckpointFolderError(SspError):
    """The folder is not a Spark checkpoint, or a file of it is damaged."""

    kind = "invalid-checkpoint"


def damaged(location: str, name: str, found: str, expected: str) -> CheckpointFolderError:
    """Return the error of a file of a checkpoint that cannot be parsed."""
    return CheckpointFolderError(
        f"{name} of {location}",
        found=found,
        expected=expected,
        next_step="restore the file from a backup; a query does not start from it either",
    )
