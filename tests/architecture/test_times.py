"""Times and durations are written by one module, `spark_ssp.common.times`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.architecture.layers import ROOT
from tests.architecture.modules import distributed_modules

_WRITER: Final = "common.times"

_EXEMPT: Final = {
    "common.aws.botocore_bypass": "the date of a signature, as AWS defines it",
    "testing.kinesis.server": "the date of an HTTP response",
    "testing.kinesis.streams": "text of the service that it stands for",
    "testing.kinesis.state.page_reads": "text of the service that it stands for",
    "testing.kinesis.state.subscription": "text of the service that it stands for",
    "testing.kinesis.state.errors": "imports nothing of the product",
    "testing.kafka.broker": "imports nothing of the product",
    "kafka_source.dedup.dedup_headers": "a header for programs",
}
"""Modules that may write a time themselves, with the reason."""

_FORMATTERS: Final = frozenset(
    {
        "asctime",
        "ctime",
        "formatdate",
        "fromtimestamp",
        "gmtime",
        "isoformat",
        "localtime",
        "strftime",
        "utcfromtimestamp",
    }
)
_UNIT: Final = r"(?: ?ms| (?:millis|milliseconds?|s|secs?|seconds?|min|minutes?|hours?|days?))\b"
_AFTER_VALUE: Final = re.compile(_UNIT)
_IN_TEMPLATE: Final = re.compile(r"%[-+ #0-9.]*[sdrfge]" + _UNIT)
_IS_NUMBER: Final = re.compile(r"(?:^|_)(?:ms|millis|seconds|s)$", re.IGNORECASE)
_LOG_METHODS: Final = frozenset(
    {"critical", "debug", "error", "exception", "info", "log", "warning"}
)


def _hits(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
                if name in _FORMATTERS:
                    yield node.lineno, f"a call of {name}"
                if name in _LOG_METHODS and isinstance(node.func, ast.Attribute):
                    yield from _arguments(node)
            case ast.Constant(value=str() as text) if _IN_TEMPLATE.search(text):
                yield node.lineno, "a number and a unit in a template"
            case ast.JoinedStr(values=parts):
                yield from _values(parts)


def _arguments(call: ast.Call) -> Iterator[tuple[int, str]]:
    for argument in call.args[1:]:
        values = argument.value if isinstance(argument, ast.Starred) else argument
        for value in values.elts if isinstance(values, ast.Tuple) else [values]:
            if _is_time(value):
                yield value.lineno, f"{ast.unparse(value)} in a log line"


def _values(parts: list[ast.expr]) -> Iterator[tuple[int, str]]:
    for part, following in zip(parts, [*parts[1:], ast.Constant("")], strict=True):
        if not isinstance(part, ast.FormattedValue):
            continue
        has_unit = isinstance(following, ast.Constant) and _AFTER_VALUE.match(str(following.value))
        if has_unit or _is_time(part.value):
            yield part.lineno, f"{{{ast.unparse(part.value)}}} in a text"


def _is_time(value: ast.expr) -> bool:
    """Return whether a value is a number of milliseconds or seconds, by its name."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return _IS_NUMBER.search(name) is not None
        case ast.BinOp(left=left, right=right):
            return _is_time(left) or _is_time(right)
    return False


def _hits_of(source: str) -> list[str]:
    return [what for _, what in _hits(ast.parse(source))]


def test_the_rule_finds_what_it_forbids() -> None:
    values = 'f"after {waited:g} s"; f"for {a.timeout_ms} of"; f"at {now_ms - then}"'
    lines = '_log.info("for %d s", n); _log.info("late: %s", a.lag_ms); log.info("%s", *(a, b_s))'
    calls = "time.isoformat(); strftime('%H'); datetime.fromtimestamp(1)"
    assert [len(_hits_of(text)) for text in (values, lines, calls)] == [3, 3, 3]
    assert _hits_of('f"for {duration_text(wait_ms)}: {count} slots, {noun}s"') == []


def test_times_and_durations_are_written_by_one_module() -> None:
    found = [
        f"{module.path.relative_to(ROOT)}:{line}: {what}"
        for module in distributed_modules()
        if module.name not in {_WRITER, *_EXEMPT}
        for line, what in _hits(module.tree)
    ]
    assert found == []


def test_no_exemption_is_left_over() -> None:
    by_name = {module.name: module for module in distributed_modules()}
    assert [name for name in _EXEMPT if not list(_hits(by_name[name].tree))] == []
