"""Creates the request for a lease table and checks whether an existing table is one.

KCL 3 uses an index over the owners; a table created here has it. An existing table without it is
not changed: KCL 3 adds it when it needs it, and this project does not read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from spark_ssp.checkpoint.errors import LeaseTableError
from spark_ssp.checkpoint.leases.lease_serializer import Attribute

OWNER_INDEX: Final = "LeaseOwnerToLeaseKeyIndex"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Provisioned capacity, in units."""

    read: int
    write: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """The name of a table, and how to create it. An existing table keeps its capacity and tags."""

    name: str
    capacity: Capacity | None = None
    """None: on demand."""
    tags: tuple[tuple[str, str], ...] = ()
    wait_s: float = 600.0
    """Maximum time until it can be used; DynamoDB takes some ten seconds to create one."""


class Readiness(StrEnum):
    """The next step for a table."""

    ABSENT = "absent"
    READY = "ready"
    WAIT = "wait"


def creation_request(settings: TableSettings) -> dict[str, Any]:
    """Return the arguments of CreateTable."""
    index: dict[str, Any] = {
        "IndexName": OWNER_INDEX,
        "KeySchema": [
            {"AttributeName": Attribute.OWNER.value, "KeyType": "HASH"},
            {"AttributeName": Attribute.KEY.value, "KeyType": "RANGE"},
        ],
        "Projection": {"ProjectionType": "KEYS_ONLY"},
    }
    request: dict[str, Any] = {
        "TableName": settings.name,
        "KeySchema": [{"AttributeName": Attribute.KEY.value, "KeyType": "HASH"}],
        "AttributeDefinitions": [
            {"AttributeName": name.value, "AttributeType": "S"}
            for name in (Attribute.KEY, Attribute.OWNER)
        ],
        "GlobalSecondaryIndexes": [index],
        "BillingMode": "PAY_PER_REQUEST",
    }
    if settings.capacity is not None:
        units = {
            "ReadCapacityUnits": settings.capacity.read,
            "WriteCapacityUnits": settings.capacity.write,
        }
        request["BillingMode"] = "PROVISIONED"
        request["ProvisionedThroughput"] = units
        index["ProvisionedThroughput"] = units
    if settings.tags:
        request["Tags"] = [{"Key": key, "Value": value} for key, value in settings.tags]
    return request


def readiness(name: str, table: Mapping[str, Any] | None) -> Readiness:
    """Return the next step for the table described (None: it does not exist).

    LeaseTableError if it never can be used: it has another key, or a status that does not pass.
    """
    if table is None:
        return Readiness.ABSENT
    status = str(table.get("TableStatus"))
    if status == "DELETING":
        return Readiness.WAIT
    _check_key(name, table)
    if status in ("ACTIVE", "UPDATING"):
        return Readiness.READY
    if status == "CREATING":
        return Readiness.WAIT
    raise LeaseTableError(
        f"table {name}",
        found=f"status {status}",
        expected="status ACTIVE",
        next_step="repair the table (for example its encryption key), or name another one",
    )


def _check_key(name: str, table: Mapping[str, Any]) -> None:
    types = {
        entry["AttributeName"]: entry["AttributeType"]
        for entry in table.get("AttributeDefinitions", ())
    }
    key = [
        (entry["KeyType"], entry["AttributeName"], types.get(entry["AttributeName"]))
        for entry in table.get("KeySchema", ())
    ]
    if key != [("HASH", Attribute.KEY.value, "S")]:
        found = ", ".join(f"{kind} {attribute} ({of_type})" for kind, attribute, of_type in key)
        raise LeaseTableError(
            f"table {name}",
            found=f"a table with key {found or 'unknown'}",
            expected=f"a lease table with key HASH {Attribute.KEY.value} (S)",
            next_step="it belongs to another application: choose another applicationName, or "
            "another table by leaseTable",
        )
