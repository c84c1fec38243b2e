"""Builds DynamoDB requests from changes of a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from spark_ssp.checkpoint.leases.conditional_writes import DeleteRow, PutRow, RowChange, UpdateRow
from spark_ssp.checkpoint.leases.lease import AttributeValue, LeaseKey
from spark_ssp.checkpoint.leases.lease_serializer import Attribute, text

Operation = Literal["PutItem", "UpdateItem", "DeleteItem"]

_EXISTS: Final = f"attribute_exists({Attribute.KEY.value})"
_ABSENT: Final = f"attribute_not_exists({Attribute.KEY.value})"
_ALL_OLD: Final = "ALL_OLD"


def request_of(table: str, key: LeaseKey, change: RowChange) -> tuple[Operation, dict[str, Any]]:
    """Return the API operation and its arguments. The answer to a failed condition contains the
    row."""
    row: dict[str, Any] = {"TableName": table, "Key": {Attribute.KEY.value: text(key)}}
    match change:
        case PutRow(item=item):
            return "PutItem", {
                "TableName": table,
                "Item": dict(item),
                "ConditionExpression": _ABSENT,
                "ReturnValuesOnConditionCheckFailure": _ALL_OLD,
            }
        case UpdateRow():
            return "UpdateItem", row | _update(change)
        case DeleteRow():
            return "DeleteItem", row


def _update(change: UpdateRow) -> dict[str, Any]:
    terms = _Terms()
    conditions = [_EXISTS]
    for name, value in sorted(change.expected.items()):
        if value is None:
            conditions.append(f"attribute_not_exists({terms.name(name)})")
        else:
            conditions.append(f"{terms.name(name)} = {terms.value(value)}")
    clauses = {
        "SET": [f"{terms.name(n)} = {terms.value(v)}" for n, v in sorted(change.sets.items())],
        "ADD": [
            f"{terms.name(n)} {terms.value({'N': str(amount)})}"
            for n, amount in sorted(change.adds.items())
        ],
        "REMOVE": [terms.name(n) for n in sorted(change.removes)],
    }
    update = " ".join(f"{word} {', '.join(parts)}" for word, parts in clauses.items() if parts)
    request: dict[str, Any] = {
        "UpdateExpression": update,
        "ConditionExpression": " AND ".join(conditions),
        "ExpressionAttributeNames": terms.names,
        "ReturnValues": "ALL_NEW",
        "ReturnValuesOnConditionCheckFailure": _ALL_OLD,
    }
    if terms.values:
        request["ExpressionAttributeValues"] = terms.values
    return request


class _Terms:
    """Placeholders for attribute names, which may be reserved words, and values."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: dict[str, Mapping[str, Any]] = {}

    def name(self, attribute: str) -> str:
        self.names[f"#{attribute}"] = attribute
        return f"#{attribute}"

    def value(self, value: AttributeValue) -> str:
        placeholder = f":v{len(self.values)}"
        self.values[placeholder] = value
        return placeholder
