"""The columns that a query requests of a source, and text that is not UTF-8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_ssp.common.errors import InvalidRequestError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a source's rows. `is_text`: its bytes are requested as text."""

    name: str
    is_text: bool = False

    def typed(self, values: pa.Array, record_name: Callable[[int], str]) -> pa.Array:
        """Return the values in the requested type: text shares the memory of the bytes. Raises
        InvalidRequestError with the name of the first row's record that is not UTF-8."""
        if not self.is_text:
            return values
        try:
            return values.cast("string")
        except ValueError:
            row = next(row for row, value in enumerate(values) if not _is_utf8(value.as_py()))
        raise InvalidRequestError(
            record_name(row),
            found=f"bytes in {self.name} that are not UTF-8",
            expected=f"UTF-8, because the query reads {self.name} as a string",
            next_step=f"read {self.name} as binary and decode it after load(), for example by "
            f"try_validate_utf8(CAST({self.name} AS STRING)), which is null for such a record; "
            "correct the producer",
        )


def not_utf8(text: pa.Array) -> Sequence[bool]:
    """Return for each value whether it is not UTF-8; nothing if all are. Spark casts any binary to
    a string, without a check."""
    try:
        text.validate(full=True)
    except ValueError:
        return [not _is_utf8(value) for value in text.cast("large_binary").to_pylist()]
    return ()


def _is_utf8(value: bytes | None) -> bool:
    try:
        return value is None or str(value, "utf-8") is not None
    except UnicodeDecodeError:
        return False
