"""The options reference says what the table of options says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kinesis_source.option_table import KINESIS_OPTIONS
from kinesis_source.options import parse_options
from ssp_common.options import aliases_table, foreign_table, options_table

REFERENCE = Path(__file__).parents[2] / "docs" / "guide" / "kinesis-options.md"


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("options", options_table(KINESIS_OPTIONS.specs)),
        ("aliases", aliases_table(KINESIS_OPTIONS.specs)),
        ("refused", foreign_table(KINESIS_OPTIONS.foreign, refused=True)),
        ("without-effect", foreign_table(KINESIS_OPTIONS.foreign, refused=False)),
    ],
)
def test_a_table_of_the_reference_is_that_of_the_code(name: str, table: str) -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    (written,) = re.findall(
        rf"<!-- begin {name} -->\n\n(.*?)\n<!-- end {name} -->", text, re.DOTALL
    )
    assert written == table


def test_every_prefix_is_documented() -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    section = text.split("## Options that are not in the table")[1].split("\n## ")[0]
    assert re.findall("`([^`]+)`", section) == list(KINESIS_OPTIONS.prefixes)


def test_every_start_of_the_reference_is_understood() -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    section = text.split("## Where a query starts")[1].split("\n## ")[0]
    starts = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    starts += re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)
    starts += re.findall(r"`(\{.*format.*\})`", section)
    assert len(starts) == 8
    for start in starts:
        raw = {"streamName": "orders", "startingPosition": start}
        if '"payments"' in start:
            raw["streamName"] = "orders,payments"
        assert parse_options(raw).starting_position.default is not None
