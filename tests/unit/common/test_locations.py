"""URIs as errors show them, and files that another user may have put into a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_ssp.common import locations
from spark_ssp.common.locations import (
    IrregularFileError,
    file_path,
    read_regular,
    shown_location,
)


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///data/run", "/data/run"),
        ("file:/data/run", "/data/run"),
        ("FILE:///data/run/", "/data/run"),
        ("file:///data/run#2", "/data/run#2"),
        ("file:///data/a?b/c", "/data/a?b/c"),
        ("file:///data/100%25 a%20b", "/data/100%25 a%20b"),
        ("file://localhost/data/run", "/data/run"),
    ],
)
def test_a_file_uri_is_read_as_hadoop_reads_it(uri: str, path: str) -> None:
    assert str(file_path(uri)) == path


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("s3a://AKIA:se/cr/et@bucket/x", "s3a://***@bucket/x"),
        ("s3a://AKIA@bucket/x", "s3a://***@bucket/x"),
        ("ftp://u:p@ss@host/x", "ftp://***@host/x"),
        ("hdfs://nn:8020/team/run@2026", "hdfs://nn:8020/team/run@2026"),
        ("s3a://bucket/run@2026", "s3a://bucket/run@2026"),
        ("abfss://lake@acc.dfs.core.windows.net/x", "abfss://lake@acc.dfs.core.windows.net/x"),
        ("abfss://lake:key@acc.dfs.core.windows.net/x", "abfss://***@acc.dfs.core.windows.net/x"),
        ("/mnt/u:p@host/x?y", "/mnt/u:p@host/x?y"),
        ("file:///data/a?b/c", "file:///data/a?b/c"),
        ("FILE:/data/a?b", "FILE:/data/a?b"),
        ("https://host/x?sig=secret@", "https://host/x?***"),
        ("ftp://u:p?s@host/x", "ftp://***@host/x"),
        ("hdfs:/user:pw@x", "hdfs:/***@x"),
        ("hdfs:user:pw@x/y", "hdfs:***@x/y"),
        ("hdfs:///user:p/w@x/y", "hdfs:///***@x/y"),
        ("hdfs:/team/run@2026", "hdfs:/team/run@2026"),
    ],
)
def test_only_users_passwords_and_queries_are_hidden(location: str, shown: str) -> None:
    assert shown_location(location) == shown


def test_only_a_regular_file_of_a_sane_size_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, link, pipe = (tmp_path / name for name in ("file", "link", "pipe"))
    file.write_bytes(b"12345")
    assert read_regular(file) == b"12345"
    link.symlink_to(file)
    os.mkfifo(pipe)
    for path in (link, pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(IrregularFileError):
            read_regular(path)
    monkeypatch.setattr(locations, "MAX_BYTES", 4)
    with pytest.raises(IrregularFileError):
        read_regular(file)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "absent")
