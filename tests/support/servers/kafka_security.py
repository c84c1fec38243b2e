"""A Kafka that lets only known users in: by passwords, by tokens and by certificates."""

from __future__ import annotations

import base64
import json
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, Self
from urllib.parse import parse_qs

from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from spark_ssp.kafka_source.client.admin_connection import AdminClient
from spark_ssp.testing.kafka.broker import LocalServer
from tests.support.kinesis.certificates import write_certificates
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.waiting import until

_HOST: Final = "127.0.0.1"
_PATIENCE_S: Final = 60

USER: Final = "alice"
PASSWORD: Final = "correct-horse-5417"
"""Password of USER, with every mechanism."""
CLIENT_SECRET: Final = "battery-staple-7781"
"""Secret of the client USER at the token endpoint."""

_MODULES: Final = "org.apache.kafka.common.security"


class SecureKafka(LocalServer):
    """A context manager: a broker with the listeners SASL_PLAINTEXT (PLAIN, SCRAM-SHA-256,
    OAUTHBEARER) and SSL, which wants a client's certificate."""

    def __init__(self) -> None:
        self._folder = Path()
        self.broker: KafkaBroker
        self.tokens: TokenEndpoint

    @property
    def authority(self) -> Path:
        """The certificate of the authority that the broker's is from, as PEM."""
        return self._folder / "ca.pem"

    @property
    def client(self) -> Path:
        """A client's certificate and key in one file, as PEM."""
        return self._folder / "client.pem"

    def deny(self, user: str, topic: str) -> None:
        """Hide a topic from a user; it is visible to all other users."""
        self._permit(user, ResourceType.TOPIC, topic, AclOperation.ALL, AclPermissionType.DENY)

    def show(self, user: str, topic: str) -> None:
        """End `deny`."""
        literal, deny = ResourcePatternType.LITERAL, AclPermissionType.DENY
        kind = AclBindingFilter(
            *(ResourceType.TOPIC, topic, literal, f"User:{user}", "*", AclOperation.ALL, deny)
        )
        admin = self._admin()
        for future in admin.delete_acls([kind]).values():
            future.result(_PATIENCE_S)
        until(
            lambda: not admin.describe_acls(kind).result(_PATIENCE_S),
            "the end of the ACL at the broker",
        )

    def deny_groups(self, user: str) -> None:
        """Let a user do nothing with any consumer group."""
        self._permit(user, ResourceType.GROUP, "*", AclOperation.ALL, AclPermissionType.DENY)

    def let_read(self, user: str, topic: str) -> None:
        """Allow only this user to use a topic, and only to read and describe it."""
        for operation in (AclOperation.DESCRIBE, AclOperation.READ):
            self._permit(user, ResourceType.TOPIC, topic, operation, AclPermissionType.ALLOW)

    def let_write_exactly_once(self, user: str, topic: str, name: str) -> None:
        """Give only this user, and those before, the permissions of
        docs/guide/kafka-permissions.md for a sink with this topic and transactionName."""
        prefix = f"ssp/{name}/"
        for resource, of, operations, pattern in (
            (ResourceType.TOPIC, topic, "WRITE DESCRIBE READ", ResourcePatternType.LITERAL),
            (
                *(ResourceType.TRANSACTIONAL_ID, prefix, "WRITE DESCRIBE"),
                ResourcePatternType.PREFIXED,
            ),
            (ResourceType.GROUP, prefix, "READ", ResourcePatternType.PREFIXED),
        ):
            for operation in operations.split():
                allow = AclPermissionType.ALLOW
                self._permit(user, resource, of, AclOperation[operation], allow, pattern)

    def _permit(
        self,
        user: str,
        resource: ResourceType,
        name: str,
        operation: AclOperation,
        permission: AclPermissionType,
        pattern: ResourcePatternType = ResourcePatternType.LITERAL,
    ) -> None:
        acl = AclBinding(resource, name, pattern, f"User:{user}", "*", operation, permission)
        admin = self._admin()  # a client without references answers nothing
        for future in admin.create_acls([acl]).values():
            future.result(_PATIENCE_S)
        # The broker receives it from its controller, a moment later.
        kind = AclBindingFilter(resource, name, pattern, f"User:{user}", "*", operation, permission)
        until(
            lambda: len(admin.describe_acls(kind).result(_PATIENCE_S)) > 0,
            "the ACL at the broker",
        )

    def _start(self, resources: ExitStack) -> None:
        self._folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="tls-")))
        write_certificates(self._folder, "broker", "client")
        self.tokens = resources.enter_context(TokenEndpoint())
        self.broker = resources.enter_context(
            KafkaBroker(settings=self._settings(), listeners=("SASL_PLAINTEXT", "SSL"))
        )
        self._add_user()

    def _settings(self) -> Mapping[str, str]:
        listener = "listener.name.sasl_plaintext"
        return {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "true",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
            f"{listener}.plain.sasl.jaas.config": f"{_MODULES}.plain.PlainLoginModule required "
            f'user_{USER}="{PASSWORD}";',
            f"{listener}.scram-sha-256.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule "
            "required;",
            f"{listener}.oauthbearer.sasl.jaas.config": f"{_MODULES}.oauthbearer."
            "OAuthBearerLoginModule required;",
            # A connection ends with its token, unless the client has sent the next one.
            f"{listener}.oauthbearer.connections.max.reauth.ms": "3600000",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._folder / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "ssl.client.auth": "required",
        }

    def _add_user(self) -> None:
        user = UserScramCredentialUpsertion(
            USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), PASSWORD.encode()
        )
        admin = self._admin()
        for future in admin.alter_user_scram_credentials([user]).values():
            future.result(_PATIENCE_S)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.broker.bootstrap_servers, "log_level": "0"})


class TokenEndpoint:
    """A context manager: hands out unsigned tokens to the client USER with CLIENT_SECRET."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer((_HOST, 0), _TokenHandler)

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self._server.server_port}/token"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _TokenHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        wanted = base64.b64encode(f"{USER}:{CLIENT_SECRET}".encode()).decode()
        known = self.headers["Authorization"] == f"Basic {wanted}"
        if known and parse_qs(body)["grant_type"] == ["client_credentials"]:
            self._answer(200, {"access_token": unsigned_token(), "token_type": "Bearer"})
        else:
            # As careless as some servers are.
            description = f"refused: {self.headers['Authorization']} {CLIENT_SECRET}"
            self._answer(401, {"error": "invalid_client", "error_description": description})

    def _answer(self, status: int, values: Mapping[str, str]) -> None:
        body = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing to the standard error."""


def unsigned_token(lives_s: int = 3600) -> str:
    """A token of the user USER, which the broker takes at its word."""
    now = int(time.time())
    header, claims = {"alg": "none"}, {"sub": USER, "iat": now, "exp": now + lives_s}
    parts = [json.dumps(part).encode() for part in (header, claims)]
    encoded = [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts]
    return ".".join((*encoded, ""))


def provided_token(*, lives_s: int = 3600) -> tuple[str, float]:
    """A function for the option `tokenProvider`."""
    return unsigned_token(lives_s), time.time() + lives_s


def wrong_token(*, secret: str) -> tuple[str, float]:
    """A function for the option `tokenProvider` whose token no broker accepts."""
    return secret, time.time() + 3600
