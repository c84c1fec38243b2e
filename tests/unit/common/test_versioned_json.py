"""A key that this release does not know is refused, in stored documents of every kind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.grouping.assignment import decode_assignment
from spark_ssp.kafka_source.planning.spark_checkpoint import decode_any
from spark_ssp.kinesis_source.model.offset import decode
from spark_ssp.planner.planning.plan import from_text

Place = tuple[str | int, ...]

_READERS: Final[dict[str, Callable[[Any], object]]] = {
    "offset": decode,
    "kafka_offset": decode_any,
    "assignment": decode_assignment,
    "plan": lambda document: from_text(json.dumps(document)),
}
_GOLDEN: Final = sorted(
    path
    for path in (Path(__file__).parents[2] / "golden").glob("*_v*.json")
    if re.sub(r"_v\d+_.*", "", path.name) in _READERS
)


def _reader(path: Path) -> Callable[[Any], object]:
    return _READERS[re.sub(r"_v\d+_.*", "", path.name)]


def _objects(document: Any, path: Place = ()) -> Iterator[Place]:
    """The path of each object of a document."""
    if isinstance(document, dict):
        yield path
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        if isinstance(value, dict | list):
            yield from _objects(value, (*path, key))


def _with(document: Any, path: Place, key: str, value: object) -> Any:
    changed = deepcopy(document)
    level = changed
    for step in path:
        level = level[step]
    level[key] = value
    return changed


def _refusal(reader: Callable[[Any], object], document: Any) -> IncompatibleStateError:
    with pytest.raises(IncompatibleStateError) as caught:
        reader(document)
    return caught.value


_unknown_keys = st.text(max_size=20).map(lambda text: f"{text} future")
_values: st.SearchStrategy[Any] = st.sampled_from([None, {}, [], 0, 1, "x", {"more": {}}])


@given(data=st.data())
@pytest.mark.parametrize("path", _GOLDEN, ids=lambda path: path.stem)
def test_a_key_that_is_added_anywhere_is_refused(path: Path, data: st.DataObject) -> None:
    document = json.loads(path.read_text())
    _reader(path)(document)
    level = data.draw(st.sampled_from(sorted(_objects(document), key=str)))
    key, value = data.draw(_unknown_keys), data.draw(_values)
    error = _refusal(_reader(path), _with(document, level, key, value))
    assert str(error).isprintable()
    assert len(str(error)) < 1000
    assert "spark-ssp version that" in error.next_step


@pytest.mark.parametrize("path", _GOLDEN, ids=lambda path: path.stem)
def test_an_unknown_key_of_the_document_itself_is_named(path: Path) -> None:
    document = json.loads(path.read_text()) | {"fu\nture" * 100: {}}
    error = _refusal(_reader(path), document)
    assert re.search(r"with the unknown key 'fu\\nture.*…'$", error.found)
    assert error.expected == f"the layout of version {document['v']}"


def test_an_unknown_key_within_is_named_with_its_place() -> None:
    document = json.loads((_GOLDEN[0].parent / "offset_v1_plain.json").read_text())
    place: Place = ("ssp", "0", "orders", "shardId-000000000000")
    error = _refusal(decode, _with(document, place, "until", 1))
    assert error.found == (
        "an offset with the unknown key 'until' in ssp / 0 / orders / shardId-000000000000"
    )
