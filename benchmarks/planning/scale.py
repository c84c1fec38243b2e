"""Drivers, cores, network and dollars for a number of shards and a throughput.

    python -m benchmarks.planning.scale

A model, not a measurement: it multiplies the figures of `FIGURES`, each with its source, and prints
the tables of docs/guide/scale.md in Markdown. A test compares them with the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_DAY_S: Final = 86_400
_MB: Final = 1_000_000
_GB: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number from elsewhere."""

    value: float
    unit: str
    source: str


_PRICES: Final = "a copy of AWS's price list, us-east-1, September 2026"

DRIVER_MS: Final = Figure(
    value=0.18,
    unit="ms of the driver's CPU a busy shard and trigger",
    source="`benchmarks.kinesis.many_shards`, 10,000 shards",
)
OFFSET_BYTES: Final = Figure(
    value=11,
    unit="bytes a shard in an offset of more than 256",
    source="`benchmarks.planning.offset_size`",
)
KEPT_OFFSETS: Final = Figure(
    value=200,
    unit="offsets in the JVM's heap",
    source="Spark keeps 100 progress reports (`spark.sql.streaming.numRecentProgressUpdates`), "
    "each with a start and an end; before PySpark 4.2 another end",
)
AGENT_WRITE_MS: Final = Figure(
    value=0.2,
    unit="ms of the lease agent's CPU a write",
    source="`benchmarks.leases.agent`, 10,000 busy leases: 368 to 425 ms/s for 2,000 writes a "
    "second, without threads",
)
AGENT_ROW_MS: Final = Figure(
    value=0.21,
    unit="ms of the lease agent's CPU a row of another driver, each `failoverTime`",
    source="`benchmarks.leases.lost_driver`, 5 and 10 drivers with 10,000 leases; 0.09 of it to "
    "parse the row in two scans",
)
ROW_UNITS: Final = Figure(
    value=0.1,
    unit="read units a row of a scan",
    source="a row has about 400 bytes, a unit is 4 KB; two scans each `failoverTime`",
)
CORE_MB: Final = Figure(
    value=46,
    unit="MB/s of records of 200 bytes that a core reads and hands to Spark",
    source="`benchmarks.kinesis.bulk`, 16 shards",
)
ENVELOPE_BYTES: Final = Figure(
    value=180,
    unit="bytes of JSON around a record's base64",
    source="sequence number, time, key and their names in an answer of GetRecords",
)
STREAM_SHARDS: Final = Figure(
    value=10_000,
    unit="shards of a stream, unless AWS raises it",
    source="API reference, UpdateShardCount",
)
PAGE_SHARDS: Final = Figure(
    value=1_000, unit="shards in an answer of ListShards", source="API reference, ListShards"
)
SHARD_MB: Final = Figure(
    value=1, unit="MB/s written to a shard", source="Kinesis, Quotas and limits"
)
WRITE_DOLLARS: Final = Figure(
    value=0.625, unit="dollars a million write units of DynamoDB, on demand", source=_PRICES
)
READ_DOLLARS: Final = Figure(
    value=0.125, unit="dollars a million read units of DynamoDB, on demand", source=_PRICES
)
SHARD_DOLLARS: Final = Figure(
    value=0.015, unit="dollars a shard and hour, provisioned", source=_PRICES
)
PUT_DOLLARS: Final = Figure(
    value=0.014, unit="dollars a million PUT units of 25 KB, provisioned", source=_PRICES
)
ON_DEMAND_DOLLARS: Final = Figure(
    value=0.12, unit="dollars a GB written and read once, On-demand Standard", source=_PRICES
)
ADVANTAGE_DOLLARS: Final = Figure(
    value=0.048, unit="dollars a GB written and read once, On-demand Advantage", source=_PRICES
)

FIGURES: Final = (
    *(DRIVER_MS, OFFSET_BYTES, KEPT_OFFSETS, AGENT_WRITE_MS, AGENT_ROW_MS, ROW_UNITS, CORE_MB),
    *(ENVELOPE_BYTES, STREAM_SHARDS, PAGE_SHARDS, SHARD_MB, WRITE_DOLLARS, READ_DOLLARS),
    *(SHARD_DOLLARS, PUT_DOLLARS, ON_DEMAND_DOLLARS, ADVANTAGE_DOLLARS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The streams to read."""

    shards: int
    gb_s: float
    record_bytes: int = 1_000
    """As put: fewer fill no shard, which takes 1,000 records a second."""

    def __post_init__(self) -> None:
        most = self.shards * SHARD_MB.value / 1000
        if self.gb_s > most:
            raise ValueError(f"{self.shards} shards take at most {most:g} GB/s, not {self.gb_s:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of the queries, and the part of each resource that is to be used."""

    trigger_s: float = 10
    failover_s: float = 30
    checkpoint_s: float = 15
    discovery_s: float = 10
    driver_share: float = 0.5
    """Of a trigger, for planning: the rest is the batch."""
    agent_share: float = 0.75
    """Of a core: renewals must not be late."""
    heap_mib: float = 512
    """For the offsets that Spark keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The resources for a load."""

    streams: int
    drivers: int
    """Queries of all streams together."""
    shards_a_driver: int
    binds: str
    """The resource that determines the number of drivers; empty if one is enough for a stream."""
    planning_s: float
    """CPU of a driver in each trigger."""
    heap_mib: float
    agent_ms: float
    """CPU of a lease agent in each second; 0 without leases."""
    writes_s: float
    """Write units of DynamoDB, of all streams."""
    write_dollars: float
    """A day, as all dollars here."""
    scan_dollars: float
    listings_s: float
    """Requests of ListShards a second and stream."""
    cores: int
    gbit_s: float
    provisioned_dollars: float
    on_demand_dollars: float
    advantage_dollars: float

    @property
    def has_leases(self) -> bool:
        return self.drivers > self.streams


def plan(load: Load, settings: Settings) -> Plan:
    """Return the resources for a load: one driver for each stream if it suffices, otherwise several
    that share the stream by leases."""
    streams = math.ceil(load.shards / STREAM_SHARDS.value)
    shards = math.ceil(load.shards / streams)
    limits = {
        "driver's CPU": settings.driver_share * settings.trigger_s * 1000 / DRIVER_MS.value,
        "driver's heap": settings.heap_mib * 2**20 / (OFFSET_BYTES.value * KEPT_OFFSETS.value),
    }
    if shards > min(limits.values()):
        limits["lease agent"] = _most_leases(shards, settings)
    binds = min(limits, key=lambda name: limits[name])
    drivers = math.ceil(shards / limits[binds])
    each = math.ceil(shards / drivers)
    shared = drivers > 1
    writes = streams * shards * writes_a_lease(settings) if shared else 0.0
    scanned = streams * drivers * shards * ROW_UNITS.value * 2 / settings.failover_s
    bytes_s = load.gb_s * _GB
    records_s = bytes_s / load.record_bytes
    puts_s = records_s * math.ceil(load.record_bytes / 25_000)
    gb_a_day = load.gb_s * _DAY_S
    return Plan(
        streams=streams,
        drivers=streams * drivers,
        shards_a_driver=each,
        binds=binds if shared else "",
        planning_s=each * DRIVER_MS.value / 1000,
        heap_mib=each * OFFSET_BYTES.value * KEPT_OFFSETS.value / 2**20,
        agent_ms=_agent_ms(each, shards, settings) if shared else 0.0,
        writes_s=writes,
        write_dollars=_dollars(writes, WRITE_DOLLARS),
        scan_dollars=_dollars(scanned, READ_DOLLARS) if shared else 0.0,
        listings_s=drivers * math.ceil(shards / PAGE_SHARDS.value) / settings.discovery_s,
        cores=math.ceil(bytes_s / (CORE_MB.value * _MB)),
        gbit_s=(bytes_s * 4 / 3 + records_s * ENVELOPE_BYTES.value) * 8 / 1e9,
        provisioned_dollars=load.shards * 24 * SHARD_DOLLARS.value + _dollars(puts_s, PUT_DOLLARS),
        on_demand_dollars=gb_a_day * ON_DEMAND_DOLLARS.value,
        advantage_dollars=gb_a_day * ADVANTAGE_DOLLARS.value,
    )


def writes_a_lease(settings: Settings) -> float:
    """Return the writes a second of a busy lease. A renewal is due every third of the failover
    time, and waits for a checkpoint that is due before half of it."""
    if settings.checkpoint_s <= settings.failover_s / 2:
        return 1 / settings.checkpoint_s
    return 3 / settings.failover_s


def _agent_ms(held: float, rows: float, settings: Settings) -> float:
    """Return a lease agent's CPU in ms a second."""
    others = (rows - held) * AGENT_ROW_MS.value / settings.failover_s
    return held * writes_a_lease(settings) * AGENT_WRITE_MS.value + others


def _most_leases(rows: int, settings: Settings) -> float:
    spare = settings.agent_share * 1000 - _agent_ms(0, rows, settings)
    each = _agent_ms(1, 1, settings) - _agent_ms(0, 1, settings)
    return max(1.0, spare / each)


def _dollars(a_second: float, price: Figure) -> float:
    return a_second * _DAY_S * price.value / 1e6


# --- The guide's tables --------------------------------------------------------------------------

LOADS: Final = (
    Load(shards=1_000, gb_s=1),
    Load(shards=10_000, gb_s=1),
    Load(shards=10_000, gb_s=10),
    Load(shards=100_000, gb_s=10),
    Load(shards=100_000, gb_s=100),
)
TRIGGERS_S: Final = (1, 10)

_Row = tuple[str, ...]


def drivers_table() -> list[str]:
    """Return the drivers for each number of shards and trigger interval."""
    rows: list[_Row] = []
    for shards in sorted({load.shards for load in LOADS}):
        for trigger_s in TRIGGERS_S:
            found = plan(Load(shards=shards, gb_s=0), Settings(trigger_s=trigger_s))
            rows.append(
                (
                    f"{shards:,}",
                    f"{trigger_s} s",
                    f"{found.streams}",
                    f"{found.drivers}",
                    f"{found.shards_a_driver:,}",
                    found.binds or "one is enough",
                    f"{found.planning_s:.1f} s",
                    f"{found.heap_mib:,.0f} MiB",
                    f"{found.agent_ms:,.0f} ms/s" if found.has_leases else "no leases",
                )
            )
    heading = ("shards", "trigger", "streams", "drivers", "shards a driver", "limit")
    return _table((*heading, "planning a trigger", "offsets kept", "agent's CPU"), rows)


def leases_table() -> list[str]:
    """Return the cost of the leases of the drivers above that share a stream."""
    rows: list[_Row] = []
    for shards in sorted({load.shards for load in LOADS}):
        for trigger_s in TRIGGERS_S:
            for failover_s in (10, 30):
                settings = Settings(
                    trigger_s=trigger_s, failover_s=failover_s, checkpoint_s=failover_s / 2
                )
                found = plan(Load(shards=shards, gb_s=0), settings)
                if found.has_leases:
                    rows.append(
                        (
                            f"{shards:,}",
                            f"{found.drivers}",
                            f"{failover_s} s",
                            f"{found.writes_s:,.0f}",
                            f"{found.write_dollars:,.0f}",
                            f"{found.scan_dollars:,.0f}",
                            f"{found.listings_s:,.0f}",
                        )
                    )
    heading = ("shards", "drivers", "`failoverTime`", "writes a second", "dollars a day: writes")
    return _table((*heading, "scans", "ListShards a second and stream"), rows)


def cluster_table() -> list[str]:
    """Return cores, network and the price of Kinesis for each load."""
    rows: list[_Row] = []
    for load in LOADS:
        found = plan(load, Settings())
        rows.append(
            (
                f"{load.shards:,}",
                f"{load.gb_s:g}",
                f"{found.cores:,}",
                f"{found.gbit_s:,.0f}",
                f"{found.provisioned_dollars:,.0f}",
                f"{found.on_demand_dollars:,.0f}",
                f"{found.advantage_dollars:,.0f}",
            )
        )
    heading = ("shards", "GB/s", "cores that read", "Gbit/s", "dollars a day: provisioned")
    return _table((*heading, "On-demand Standard", "On-demand Advantage"), rows)


def figures_table() -> list[str]:
    """Return the figures and their sources."""
    rows = [(f"{one.value:,g}", one.unit, one.source) for one in FIGURES]
    return _table(("figure", "unit", "source"), rows)


def _table(heading: _Row, rows: Sequence[_Row]) -> list[str]:
    lines = [heading, ("---",) * len(heading), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


TABLES: Final = (drivers_table, leases_table, cluster_table, figures_table)


def main() -> None:
    for table in TABLES:
        print("\n".join(table()), end="\n\n")


if __name__ == "__main__":
    main()
