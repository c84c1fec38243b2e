"""Worker ids: given, generated, and refused (SEP-1)."""

from __future__ import annotations

import pickle
import sys
import traceback
import uuid
from collections.abc import Iterator
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.checkpoint.worker_identity import (
    MAX_BYTES,
    HostAndQueryGenerator,
    ProcessorIdGenerator,
    Query,
    UuidGenerator,
    find_fault,
    load_generator,
    worker_id,
)
from spark_ssp.common.errors import InvalidOptionsError

QUERY = Query(application="orders-etl", name="orders to parquet")
MODULE = "generators_of_a_test"


class PodName:
    """A generator as a user would write it."""

    def generate_processor_id(self) -> str:
        return "pod-7"


class ForQuery:
    def __init__(self, application: str) -> None:
        self._application = application

    @classmethod
    def for_query(cls, query: Query) -> ForQuery:
        return cls(query.application)

    def generate_processor_id(self) -> str:
        return f"{self._application}-1"


class Numbering:
    """Several processors in one process, distinguished by a static counter."""

    count = 0

    def generate_processor_id(self) -> str:
        Numbering.count += 1
        return f"processor-{Numbering.count}"


class WrongProtocol:
    def generate_id(self) -> str:
        return "x"


class Demanding:
    def __init__(self, pod: str) -> None:
        self.pod = pod

    def generate_processor_id(self) -> str:
        return self.pod


class Failing:
    def generate_processor_id(self) -> str:
        raise OSError("no pod: secret-token")


class Giving:
    value: object = ""

    def generate_processor_id(self) -> object:
        return self.value


@pytest.fixture(autouse=True)
def module() -> Iterator[ModuleType]:
    """The classes above under a name that can be imported."""
    made = ModuleType(MODULE)
    classes = (PodName, ForQuery, Numbering, WrongProtocol, Demanding, Failing, Giving)
    for cls in classes:
        setattr(made, cls.__name__, cls)
    made.NUMBER = 7  # type: ignore[attr-defined]
    sys.modules[MODULE] = made
    yield made
    del sys.modules[MODULE]


def path(cls: type) -> str:
    return f"{MODULE}.{cls.__name__}"


def refusal(worker: object, generator: str | None) -> InvalidOptionsError:
    with pytest.raises(InvalidOptionsError) as caught:
        worker_id(worker, generator, query=QUERY)  # type: ignore[arg-type]
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return caught.value


# --- Which id ------------------------------------------------------------------------------------


@pytest.mark.parametrize("given_id", ["0", "00123", "-1", "1e3", "worker-1", "café", "10.0.3.17:7"])
def test_an_id_that_is_given_is_kept_as_text(given_id: str) -> None:
    assert worker_id(given_id, None, query=QUERY) == given_id


def test_ids_that_would_be_one_number_are_two() -> None:
    assert worker_id("123", None, query=QUERY) != worker_id("00123", None, query=QUERY)


@pytest.mark.parametrize("generator", [path(PodName), path(Failing), "not.to.be.had"])
def test_an_id_that_is_given_wins(generator: str) -> None:
    assert worker_id("anne", generator, query=QUERY) == "anne"


def test_without_options_each_id_is_a_uuid_of_its_own() -> None:
    one, other = (worker_id(None, None, query=QUERY) for _ in range(2))
    assert one != other
    assert str(uuid.UUID(one)) == one


def test_a_generator_is_named_by_its_path() -> None:
    assert worker_id(None, path(PodName), query=QUERY) == "pod-7"


def test_a_generator_may_get_the_query() -> None:
    assert worker_id(None, path(ForQuery), query=QUERY) == "orders-etl-1"


def test_a_generator_may_count_its_processors() -> None:
    first, second = (worker_id(None, path(Numbering), query=QUERY) for _ in range(2))
    assert first != second


@pytest.mark.parametrize("cls", [UuidGenerator, HostAndQueryGenerator])
def test_our_own_generators_are_loaded_like_any_other(cls: type) -> None:
    generator = load_generator(f"spark_ssp.checkpoint.worker_identity.{cls.__name__}", QUERY)
    assert isinstance(generator, cls)
    assert isinstance(generator, ProcessorIdGenerator)
    one, other = generator.generate_processor_id(), generator.generate_processor_id()
    assert one != other
    assert find_fault(one) is None


def test_host_and_query_are_in_the_id() -> None:
    generator = HostAndQueryGenerator(host="etl 1.example", query="orders → parquet", process=42)
    given_id = generator.generate_processor_id()
    assert given_id.startswith("etl-1.example:orders-parquet:42")
    assert find_fault(given_id) is None


@given(st.text(), st.text(), st.integers(1))
def test_host_and_query_make_a_good_id_whatever_they_are(host: str, query: str, pid: int) -> None:
    host, query = host[:200], query[:200]
    given_id = HostAndQueryGenerator(host=host, query=query, process=pid).generate_processor_id()
    assert find_fault(given_id) is None


# --- Which not -----------------------------------------------------------------------------------

BAD_IDS = [
    ("", "a blank id"),
    ("   ", "a blank id"),
    ("\n", "a blank id"),
    ("two words", "white space or control characters"),
    ("tab\tin", "white space or control characters"),
    ("anne\n", "white space or control characters"),
    ("nul\0", "white space or control characters"),
    ("no-break\u00a0space", "white space or control characters"),
    ("lone\ud800", "white space or control characters"),
    ("x" * (MAX_BYTES + 1), f"an id of {MAX_BYTES + 1} bytes"),
    ("é" * (MAX_BYTES // 2 + 1), f"an id of {MAX_BYTES + 2} bytes"),
    ("Leader", "the key of another row"),
    ("Migration3.0", "the key of another row"),
    ("shardId-000000000000", "the key of another row"),
    ("1:orders:17:shardId-000000000000", "the key of another row"),
    (7, "a value of type int"),
]


@pytest.mark.parametrize(("bad", "found"), BAD_IDS, ids=range(len(BAD_IDS)))
def test_a_bad_id_names_its_option(bad: object, found: str) -> None:
    error = refusal(bad, None)
    assert error.problems[0].option == "workerId"
    assert found in error.problems[0].found


@pytest.mark.parametrize(
    ("bad", "found"), [*BAD_IDS, (None, "a value of type NoneType")], ids=range(len(BAD_IDS) + 1)
)
def test_a_bad_id_of_a_generator_names_the_generator(
    bad: object, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Giving, "value", bad)
    error = refusal(None, path(Giving))
    assert error.problems[0].option == "processorIdGenerator"
    assert found in error.problems[0].found
    assert path(Giving) in error.problems[0].found


def test_the_longest_id_is_taken() -> None:
    longest = "x" * MAX_BYTES
    assert worker_id(longest, None, query=QUERY) == longest


@pytest.mark.parametrize(
    ("generator", "found"),
    [
        ("PodName", "'PodName'"),
        ("", "''"),
        ("my company.ids.PodName", "'my company.ids.PodName'"),
        ("my_company..PodName", "'my_company..PodName'"),
        ("not_to_be_had.ids.PodName", "cannot be imported (ModuleNotFoundError)"),
        (f"{MODULE}.Missing", f"{MODULE} has no Missing"),
        (f"{MODULE}.NUMBER", "which is not a class"),
        (path(WrongProtocol), "no method generate_processor_id"),
        (path(Demanding), "whose constructor raised TypeError"),
        (path(Failing), "raised OSError"),
    ],
)
def test_a_generator_that_cannot_be_used_names_its_option(generator: str, found: str) -> None:
    error = refusal(None, generator)
    assert error.problems[0].option == "processorIdGenerator"
    assert found in error.problems[0].found
    assert "secret" not in str(error)
    assert "secret" not in "".join(traceback.format_exception(error))


def test_a_module_that_fails_is_no_worse_than_one_that_is_missing(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "failing_ids.py").write_text("raise RuntimeError('secret')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    error = refusal(None, "failing_ids.PodName")
    assert "cannot be imported (RuntimeError)" in error.problems[0].found
    assert "secret" not in "".join(traceback.format_exception(error))


@given(st.text())
def test_every_text_is_taken_or_refused_with_a_reason(text: str) -> None:
    fault = find_fault(text)
    if fault is None:
        assert worker_id(text, None, query=QUERY) == text
    else:
        assert refusal(text, None).problems[0].next_step == fault.next_step
