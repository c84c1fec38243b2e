"""The pipeline of the guide's example, planned without the systems that it runs on."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from examples.two_stage_pipeline import describe
from tests.support.pipelines.examples import planned

COUNTS = {"kinesis/flights": 3, "airlines": 2, "airports": 1, "carrier-totals": 1}

EXPLAINED = """\
Pipeline delays: 2 stages, 5 streams, 2 tables

STREAM                           ROLE              PARTITIONS  COUNT
kafka/airlines                   input             2           found
kafka/airports                   input, broadcast  1           found
kafka/carrier-totals             output            1           found
kafka/delays-flights-by-carrier  intermediate      2           inferred: as kafka/airlines, \
through table airlines
kinesis/flights                  input             3           found

STAGE               READS                            WRITES                           KEY      \
TABLES
flights-by-carrier  kinesis/flights                  kafka/delays-flights-by-carrier  carrier  \
airports
to-carrier-totals   kafka/delays-flights-by-carrier  kafka/carrier-totals             -        \
airlines

TABLE     KEY      FILLED BY       READ BY
airlines  carrier  kafka/airlines  to-carrier-totals
airports  dest     kafka/airports  flights-by-carrier

MUST AGREE
kafka/airlines, kafka/delays-flights-by-carrier: 2 (mixed)
  table airlines [side_input fill-airlines (here); join_table airline (here)]
"""


def test_the_plan_of_the_example_is_explained() -> None:
    shown = planned(describe(), COUNTS).explain()
    assert re.sub(r"[^(]*two_stage_pipeline\.py:\d+", "here", shown) == EXPLAINED


def test_the_page_of_the_example_shows_every_operator(tmp_path: Path) -> None:
    made = planned(describe(), COUNTS)
    made.save_page(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    (drawn,) = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    texts = {text.text for text in ElementTree.fromstring(drawn).iter() if text.text}
    named = {"departures", "destination", "airline", "totals", "fill-airlines", "fill-airports"}
    assert named <= texts
    assert {stream.stream.stream for stream in made.plan.streams} <= texts
