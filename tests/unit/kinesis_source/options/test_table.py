"""Reading any map of text against a table of options."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.errors import shown
from spark_ssp.common.options.spec import (
    Alias,
    ForeignOption,
    InvalidOptionsError,
    OptionProblem,
    OptionTable,
    QueryKind,
    defaults_of,
    option,
    options_of,
    read_options,
)
from spark_ssp.common.options.values import boolean, integer, matching


def _tags(text: str) -> Mapping[str, str]:
    return {text: text}


def _retries(text: str) -> int:
    return int(text) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """A source's options, with a field that is none."""

    derived: str = ""
    count: int = option(
        "maxCount",
        integer(1, 9),
        "How many.",
        default="3",
        aliases=(
            Alias(name="peer.count", origin="Peer"),
            Alias(name="peer.retries", origin="Peer", convert=_retries),
        ),
    )
    switch: bool = option("switch", boolean, "On or off.", default="true", only=QueryKind.BATCH)
    password: str | None = option(
        "password",
        matching("[a-z]+", "lower-case letters", "copy it again"),
        "Hidden.",
        unset="none",
        secret=True,
    )
    tags: Mapping[str, str] = option("tags", _tags, "Tags.", unset="none", empty={})


TABLE = OptionTable(
    options=options_of(Values),
    foreign=(
        ForeignOption(name="peerBuffer", origin="Peer", refused=False, advice="nothing is kept"),
        ForeignOption(name="peerMode", origin="Peer", refused=True, advice="use switch"),
    ),
    prefixes=("peer.", "max"),
)


def problems(raw: dict[str, str]) -> list[tuple[str, str]]:
    return [(p.option, p.next_step) for p in read_options(TABLE, raw).problems]


def test_nothing_given_means_the_defaults() -> None:
    reading = read_options(TABLE, {})
    assert (reading.problems, reading.unknown, reading.without_effect) == ((), (), ())
    assert reading.values(Values).count == 3
    assert reading.values(Values).password is None
    assert not reading.given("switch")
    assert reading.name("maxCount") == "maxCount"


def test_names_match_whatever_their_case_and_values_are_stripped() -> None:
    reading = read_options(TABLE, {"MAXCOUNT": " 7 ", "sWitch": "false"})
    assert reading.problems == ()
    assert reading.values(Values).count == 7
    assert reading.values(Values).switch is False


def test_an_alias_brings_its_own_way_of_writing() -> None:
    assert read_options(TABLE, {"Peer.Count": "5"}).values(Values).count == 5
    reading = read_options(TABLE, {"peer.RETRIES": "5"})
    assert reading.values(Values).count == 6
    assert reading.name("maxCount") == "peer.retries"


def test_a_bad_value_is_reported_under_the_name_that_the_user_wrote() -> None:
    reading = read_options(TABLE, {"peer.count": "many"})
    assert [p.option for p in reading.problems] == ["peer.count"]
    assert "'many'" in reading.problems[0].found
    assert reading.given("maxCount")
    assert reading.values(Values).count == 3


@pytest.mark.parametrize(
    "raw", [{"maxCount": "1", "peer.count": "1"}, {"peer.count": "1", "peer.retries": "0"}]
)
def test_two_names_of_one_option_are_an_error_even_when_they_agree(raw: dict[str, str]) -> None:
    first, second = raw
    assert problems(raw) == [("maxCount", f"keep {first} and remove {second}")]


def test_one_name_in_two_cases_is_an_error() -> None:
    assert problems({"switch": "true", "SWITCH": "true"}) == [
        ("switch", "remove all but one of the spellings")
    ]


@pytest.mark.parametrize("name", ["maxCount", "password", "peer.count"])
@pytest.mark.parametrize("empty", ["", "  \n"])
def test_an_empty_value_is_an_error(name: str, empty: str) -> None:
    reading = read_options(TABLE, {name: empty})
    assert [(p.option, p.found) for p in reading.problems] == [(name, "an empty value")]


def test_a_secret_is_never_quoted() -> None:
    (problem,) = read_options(TABLE, {"password": "CANARY"}).problems
    assert problem.found == "***"
    assert "CANARY" not in str(problem)


def test_names_known_elsewhere_are_refused_or_named() -> None:
    reading = read_options(TABLE, {"PeerBuffer": "1", "peermode": "canary"})
    assert [option.name for option in reading.without_effect] == ["peerBuffer"]
    assert [(p.option, p.next_step) for p in reading.problems] == [
        ("peerMode", "remove it: use switch")
    ]
    assert "canary" not in str(reading)


@pytest.mark.parametrize(
    ("name", "next_step"),
    [
        ("maxcuont", "did you mean maxCount?"),
        ("max_count", "did you mean maxCount?"),
        ("swich", "did you mean switch?"),
        ("peer.counts", "did you mean peer.count?"),
        ("peerbufer", "did you mean peerBuffer?"),
        ("pearMode", "remove it: it resembles peerMode; use switch"),
        ("peer.zzz", "remove it, or use an option of this source"),
        ("maxxxxxx", "remove it, or use an option of this source (maxCount)"),
    ],
)
def test_a_slip_or_a_known_beginning_is_an_error(name: str, next_step: str) -> None:
    assert problems({name: "1"}) == [(name.lower(), next_step)]


def test_other_names_are_left_for_the_caller_to_name() -> None:
    reading = read_options(TABLE, {"path": "/x", "header": "true"})
    assert reading.problems == ()
    assert reading.unknown == ("header", "path")


def test_a_null_from_spark_is_an_empty_value() -> None:
    raw = {"switch": None}
    assert problems(raw) == [("switch", "give a value, or leave the option out")]  # type: ignore[arg-type]


NAMES = st.sampled_from(["maxCount", "peer.count", "switch", "password", "peerMode", "peerBuffer"])


@given(st.dictionaries(NAMES | st.text(), st.text()))
def test_no_map_of_text_breaks_the_reading(raw: dict[str, str]) -> None:
    reading = read_options(TABLE, raw)
    assert reading == read_options(TABLE, dict(reversed(raw.items())))
    assert isinstance(reading.values(Values).count, int)


def test_the_error_lists_every_problem_and_survives_pickling() -> None:
    reading = read_options(TABLE, {"maxCount": "0", "switch": "x", "peerMode": "1"})
    error = InvalidOptionsError("source", reading.problems)
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, InvalidOptionsError)
    assert str(copy) == str(error)
    assert copy.problems == error.problems
    assert str(error).startswith(
        "[invalid-options] 3 problems with the options of source:\n  1. max"
    )
    for problem in reading.problems:
        assert str(problem) in str(error)
    assert error.subject == "maxCount, switch, peerMode"


def test_the_error_of_one_problem_is_one_line() -> None:
    problem = OptionProblem(option="a", found="b", expected="c", next_step="d")
    assert str(InvalidOptionsError("source", [problem])) == (
        "[invalid-options] a: found b; expected c. Next step: d"
    )


def test_long_values_are_cut() -> None:
    assert len(shown("x" * 10_000)) < 100
    assert shown("a\nb") == "'a\\nb'"


def test_a_declaration_is_the_field_and_its_default() -> None:
    assert Values() == Values(count=3, switch=True, password=None, tags={})
    assert [(one.name, one.default_text) for one in TABLE.options] == [
        ("maxCount", "`3`"),
        ("switch", "`true`"),
        ("password", "none"),
        ("tags", "none"),
    ]
    assert read_options(TABLE, {"switch": "false"}).fields(Values) == {"switch": False}
    assert defaults_of(Values, QueryKind.BATCH) == {"switch": True}
    with pytest.raises(KeyError):
        read_options(TABLE, {}).given("swich")


def test_the_options_that_one_kind_of_query_has() -> None:
    reading = read_options(TABLE, {"SWITCH": "x", "maxCount": "1"})
    assert reading.only_given(QueryKind.BATCH) == ["switch"]
    assert reading.only_given(QueryKind.STREAM) == []
    assert reading.given_names("tags", "maxCount") == ["maxCount"]


def test_an_option_is_left_out_under_any_of_its_names() -> None:
    raw = {"Peer.Count": "1", "switch": "true"}
    assert TABLE.left_out(raw, "maxCount") == {"switch": "true"}
