"""Times written by a Java date pattern."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.options.spec import BadValueError
from spark_ssp.kinesis_source.options.starting_position import parse_java_time


@pytest.mark.parametrize(
    ("text", "pattern", "moment"),
    [
        ("06/25/2020 10:23:45 PDT", "MM/dd/yyyy HH:mm:ss ZZZ", "2020-06-25T17:23:45Z"),
        ("2023/06/12 15:18:00 GMT", "yyyy/MM/dd HH:mm:ss ZZZ", "2023-06-12T15:18:00Z"),
        ("2026-01-01T00:00:00.250Z", "yyyy-MM-dd'T'HH:mm:ss.SSSX", "2026-01-01T00:00:00.250Z"),
        ("2026-01-01T00:00:00+0530", "uuuu-MM-dd'T'HH:mm:ssZ", "2025-12-31T18:30:00Z"),
        ("2026-01-01T00:00:00-05:30", "yyyy-MM-dd'T'HH:mm:ssXXX", "2026-01-01T05:30:00Z"),
        ("1 Feb 2026, 1:05 pm utc", "d MMM yyyy, h:mm a z", "2026-02-01T13:05:00Z"),
        ("31 May 2026 12 AM GMT+2", "dd MMMM yyyy hh a VV", "2026-05-30T22:00:00Z"),
        ("2026 o'clock 1 1 Z", "yyyy 'o''clock' M d X", "2026-01-01T00:00:00Z"),
        ("20260101 est", "yyyyMMdd z", "2026-01-01T05:00:00Z"),
        ("at 'noon' 2026-1-2 12+01", "'at ''noon''' yyyy-M-d HX", "2026-01-02T11:00:00Z"),
    ],
)
def test_the_moment_that_is_meant(text: str, pattern: str, moment: str) -> None:
    assert parse_java_time(text, pattern) == datetime.fromisoformat(moment)


@pytest.mark.parametrize(
    ("text", "pattern", "found"),
    [
        ("2026-01-01 00:00", "yyyy-MM-dd HH:mm", "has no zone"),
        ("26-01-01 Z", "yy-MM-dd X", "whose yy is not supported"),
        ("Thu 2026-01-01 Z", "EEE yyyy-MM-dd X", "whose EEE is not supported"),
        ("2026-01-01 01 Z", "yyyy-MM-dd dd X", "whose dd is not supported"),
        ("2026-01 Z", "yyyy-MM X", "does not define one moment"),
        ("2026-01-01 11 Z", "yyyy-MM-dd hh X", "does not define one moment"),
        ("2026-01-01 11 AM Z", "yyyy-MM-dd HH a X", "does not define one moment"),
        ("2026-01-01 11 11 AM Z", "yyyy-MM-dd HH hh a X", "does not define one moment"),
        ("2026-01 Jan 01 Z", "yyyy-MM MMM dd X", "does not define one moment"),
        ("2026-01-01 CET", "yyyy-MM-dd z", "the zone 'CET', whose offset is not fixed"),
        ("2026-01-01 Europe/Berlin", "yyyy-MM-dd VV", "does not fit the format"),
        ("2026-1-1 Z", "yyyy-MM-dd X", "does not fit the format"),
        ("2026-02-30 Z", "yyyy-MM-dd X", "not a time of the calendar"),
        ("2026-02-01 13 AM Z", "yyyy-MM-dd hh a X", "not a time of the calendar"),
        ("2026-02-01 +01:99", "yyyy-MM-dd XXX", "not a time of the calendar"),
        ("2026-02-01 +99", "yyyy-MM-dd X", "not a time of the calendar"),
    ],
)
def test_what_cannot_be_translated_is_refused(text: str, pattern: str, found: str) -> None:
    with pytest.raises(BadValueError) as caught:
        parse_java_time(text, pattern)
    assert found in caught.value.faults[0].found
    assert "ISO 8601" in caught.value.faults[0].next_step


@given(st.datetimes(min_value=datetime(1973, 4, 1), max_value=datetime(5000, 1, 1)))  # noqa: DTZ001
def test_a_moment_survives_being_written_and_read(moment: datetime) -> None:
    moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000, tzinfo=UTC)
    text = moment.isoformat(sep=" ", timespec="milliseconds")
    assert parse_java_time(text, "yyyy-MM-dd HH:mm:ss.SSSXXX") == moment


@given(st.text(), st.text(alphabet="yMdHhamsSZXVE '/-:.") | st.text())
def test_no_text_and_no_pattern_raise_anything_else(text: str, pattern: str) -> None:
    with suppress(BadValueError):
        assert parse_java_time(text, pattern).tzinfo is not None
