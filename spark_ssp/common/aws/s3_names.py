"""Checks and formats S3 names: buckets and folders in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Folder:
    """A bucket, and the keys in it that begin with `path` and a slash."""

    bucket: str
    path: str
    """Not empty, without a slash at either end."""

    @property
    def resource(self) -> str:
        """Return the resource of permissions, as errors describe it."""
        return f"the bucket {self.bucket} and its objects"


def is_bucket(name: str) -> bool:
    """Return whether this is a valid bucket name."""
    return _BUCKET.fullmatch(name) is not None
