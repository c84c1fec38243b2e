"""The embedded service as a whole: state, HTTP, and DynamoDB if requested."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self, TypedDict

from spark_ssp.testing.kinesis.dispatch import KinesisState
from spark_ssp.testing.kinesis.server import LOOPBACK, DynamoDbServer, HttpServer
from spark_ssp.testing.kinesis.state.clock import Clock
from spark_ssp.testing.kinesis.state.faults import CallLog, Faults
from spark_ssp.testing.kinesis.state.limits import Limits
from spark_ssp.testing.kinesis.state.page_reads import UnusualAnswers
from spark_ssp.testing.kinesis.state.service_state import Delays

ACCESS_KEY = "local"
"""Any credentials are accepted; the examples use these."""


class ClientSettings(TypedDict):
    """Arguments of `boto3.client`; typed, so that its stubs accept them with `**`."""

    endpoint_url: str
    region_name: str
    aws_access_key_id: str
    aws_secret_access_key: str


class EmbeddedKinesis:
    """A Kinesis in this process, on 127.0.0.1.

        with EmbeddedKinesis() as kinesis:
            kinesis.state.create_stream("orders", shards=2)
            client = boto3.client("kinesis", **kinesis.client_settings())

    `clock`: a `Clock`, or a function that returns epoch milliseconds; default: the machine's.
    `limits`: `Limits.strict()` for those of the service; default: no limits.
    `delays`: the durations of creating, resharding and deleting; default: 0.
    `answers`: `UnusualAnswers.all()` for rare but allowed answers; default: none. `port`: 0 for any
    free one. `dynamodb`: start moto's DynamoDB as well (needs moto), with separate tables.
    `host`: another address of this machine to listen on; every program that reaches it can read
    and write.
    """

    def __init__(
        self,
        *,
        clock: Clock | Callable[[], int] | None = None,
        region: str = "us-east-1",
        port: int = 0,
        limits: Limits | None = None,
        delays: Delays | None = None,
        answers: UnusualAnswers | None = None,
        dynamodb: bool = False,
        dynamodb_port: int = 0,
        host: str = LOOPBACK,
    ) -> None:
        self.state = KinesisState(
            clock=clock, region=region, limits=limits, delays=delays, answers=answers
        )
        self._host = host
        self._port = port
        self._http: HttpServer | None = None
        self._dynamodb = DynamoDbServer(port=dynamodb_port, host=host) if dynamodb else None

    def start(self) -> Self:
        """Start serving, after a `stop` at the same addresses. Raises OSError if a port is taken
        or no port."""
        if self._http is None:
            self._http = HttpServer(self.state, port=self._port, host=self._host)
            self._port = self._http.port
            self._http.start()
            if self._dynamodb is not None:
                try:
                    self._dynamodb.start()
                except BaseException:
                    self.stop()
                    raise
        return self

    def stop(self) -> None:
        """Stop serving. The state stays, with the tables of DynamoDB. No effect when not
        serving."""
        if self._dynamodb is not None:
            self._dynamodb.stop()
        if self._http is not None:
            self._http.stop()
            self._http = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # --- Settings of clients --------------------------------------------------------------------

    @property
    def endpoint_url(self) -> str:
        """The endpoint of Kinesis: `http://<host>:<port>`."""
        if self._http is None:
            raise RuntimeError("the embedded Kinesis is not running: use `with` or start()")
        return self._http.endpoint_url

    @property
    def dynamodb_endpoint_url(self) -> str:
        """The endpoint of DynamoDB, if `dynamodb=True` was given."""
        if self._dynamodb is None:
            raise RuntimeError("DynamoDB is not running: pass EmbeddedKinesis(dynamodb=True)")
        return self._dynamodb.endpoint_url

    def client_settings(self) -> ClientSettings:
        """Return arguments for `boto3.client("kinesis", ...)`."""
        return {
            "endpoint_url": self.endpoint_url,
            "region_name": self.state.region,
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": ACCESS_KEY,
        }

    def environment(self) -> dict[str, str]:
        """Return environment variables that make AWS SDKs of other processes use this service."""
        found = {
            "AWS_ENDPOINT_URL_KINESIS": self.endpoint_url,
            "AWS_REGION": self.state.region,
            "AWS_DEFAULT_REGION": self.state.region,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": ACCESS_KEY,
            # The AWS SDK for Java sends CBOR otherwise: version 2, and version 1.
            "CBOR_ENABLED": "false",
            "AWS_CBOR_DISABLE": "true",
        }
        if self._dynamodb is not None:
            found["AWS_ENDPOINT_URL_DYNAMODB"] = self.dynamodb_endpoint_url
        return found

    # --- Shortcuts --------------------------------------------------------------------------------

    @property
    def faults(self) -> Faults:
        """The injected faults, to which others can be added."""
        return self.state.faults

    @property
    def calls(self) -> CallLog:
        """The log of the requests of clients."""
        return self.state.calls

    @property
    def clock(self) -> Clock:
        return self.state.clock
