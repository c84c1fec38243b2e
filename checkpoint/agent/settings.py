"""What a keeper of leases is told when it starts. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from checkpoint.coordination.state import Settings
from checkpoint.leases.table_schema import TableSettings
from ssp_common.aws.retries import RetrySettings
from ssp_common.options.endpoints import ConnectionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Everything that a keeper needs. Its text shows no secret; its pickle carries them, and goes
    through the keeper's pipe alone."""

    application: str
    """The application's name: KCL 3's own tables are named after it, whatever the lease table is
    called."""
    table: TableSettings
    coordination: Settings
    connection: ConnectionOptions
    """`endpoint_url` is `dynamodbEndpointUrl`."""


_ATTEMPTS: Final = 2
_CONNECT, _READ, _BACKOFF = 0.2, 0.25, 0.1
"""Shares of a call's time: 2 x (0.2 + 0.25) + 0.1 = 1."""
SHORTEST_MS: Final = 500
"""No time-out is shorter: a healthy DynamoDB may need some hundred milliseconds, for a new
connection above all."""


def with_short_timeouts(
    connection: ConnectionOptions, failover_ms: int
) -> tuple[ConnectionOptions, RetrySettings]:
    """How to ask while leases are held: no call takes longer than a third of the failover time, but
    for one with the shortest time-outs there are (failover times below 7.5 s).

    A renewal is due that often. One that fails is made again by the coordination, as long as the
    lease may last; a call that waits for longer would only keep it from doing so.
    """
    budget = failover_ms / 3
    retry = RetrySettings(
        max_attempts=min(_ATTEMPTS, connection.retry_max_attempts),
        max_backoff=min(connection.retry_max_backoff_ms, budget * _BACKOFF) / 1000,
    )
    hurried = replace(
        connection,
        connect_timeout_ms=min(
            connection.connect_timeout_ms, max(SHORTEST_MS, int(budget * _CONNECT))
        ),
        read_timeout_ms=min(connection.read_timeout_ms, max(SHORTEST_MS, int(budget * _READ))),
    )
    return hurried, retry
