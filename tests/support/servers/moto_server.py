"""All of moto's services, for tests of those that `EmbeddedKinesis` does not serve."""

from __future__ import annotations

import logging

from moto.server import ThreadedMotoServer

from spark_ssp.testing.kinesis.server import one_at_a_time


class MotoServer:
    """A server on 127.0.0.1 that answers one request at a time, until `stop`."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        serving = self._server._server
        assert serving is not None
        serving.app = one_at_a_time(serving.app)

    @property
    def endpoint_url(self) -> str:
        host, port = self._server.get_host_and_port()
        return f"http://{host}:{port}"

    def stop(self) -> None:
        self._server.stop()
