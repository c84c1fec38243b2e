"""The properties of a client, as source and sink pass them to their tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from spark_ssp.common.options.endpoints import ConnectionOptions

PREFIX: Final = "kafka."
"""The beginning of the options that are properties of the client."""
BOOTSTRAP_SERVERS: Final = "bootstrap.servers"
GROUP_ID: Final = "group.id"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenProvider:
    """The function that returns the tokens of a login, `module:function`, and its keyword arguments
    as the text of a JSON object."""

    path: str
    secret_arguments: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProperties:
    """Properties for librdkafka, sorted by name. Hashable: they are the key of cached clients. The
    `repr` never contains secrets; the pickle does, because executors need them."""

    public: tuple[tuple[str, str], ...] = ()
    secret: tuple[tuple[str, str], ...] = ()
    origins: tuple[tuple[str, str], ...] = ()
    """librdkafka's name and the user's name of each property for which they differ."""
    iam: ConnectionOptions | None = None
    """The AWS identity for a login by IAM."""
    token_provider: TokenProvider | None = None
    """The function for a login by other tokens."""

    def config(self) -> dict[str, str]:
        """Return all properties as the configuration of a client. Not for logs."""
        return dict(sorted((*self.public, *self.secret)))

    def option(self, name: str) -> str:
        """Return the option that gave a property of librdkafka, as the user wrote it."""
        return PREFIX + dict(self.origins).get(name, name)

    def __repr__(self) -> str:
        entries = sorted([*self.public, *((name, "***") for name, _ in self.secret)])
        return f"ClientProperties({', '.join(f'{name}={value}' for name, value in entries)})"
