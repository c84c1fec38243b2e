"""The content of an object of S3, which is bounded and whole."""

from __future__ import annotations

import io

import pytest
from botocore.exceptions import IncompleteReadError
from botocore.response import StreamingBody

from spark_ssp.common.aws import store


def _read(content: bytes, length: int) -> bytes:
    return store._content(StreamingBody(io.BytesIO(content), length))


def test_an_object_is_read_whole_or_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_BYTES", 4)
    assert _read(b"", 0) == b""
    assert _read(b"1234", 4) == b"1234"
    assert _read(b"12345678", 8) == b"12345"  # one more than the limit shows that it is too large
    with pytest.raises(IncompleteReadError):
        _read(b"123", 4)
