"""How S3 calls buckets and folders in them. Pure."""

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
        """What permissions are given on, as errors call it."""
        return f"the bucket {self.bucket} and its objects"


def is_bucket(name: str) -> bool:
    """Whether a bucket can be called so."""
    return _BUCKET.fullmatch(name) is not None
