"""The record processor of a KCL worker under test; the KCL starts one process of it for each shard.

Arguments: the worker's name and the file for the records, a line of JSON each
(`tests/support/kcl/workers.py` reads them). It checkpoints after every batch, at the end of its
shard and when its worker is stopped. Two more arguments are a file and a number: while the file
exists, it stands still between writing and checkpointing a batch with that number or a higher one.
It imports nothing of this project: it runs outside of the checkout.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from amazon_kclpy import kcl
from amazon_kclpy.checkpoint_error import CheckpointError
from amazon_kclpy.v3 import processor

_LOST = "ShutdownException"


class Processor(processor.RecordProcessorBase):  # type: ignore[misc]
    """Writes the records to the file, then checkpoints them."""

    def __init__(self, worker: str, output: str, hold: str = "", begin: str = "0") -> None:
        self._worker = worker
        self._hold = hold
        self._begin = int(begin)
        self._output = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._shard = ""

    def initialize(self, initialize_input: Any) -> None:
        self._shard = initialize_input.shard_id

    def process_records(self, process_records_input: Any) -> None:
        if process_records_input.records:
            self._write(process_records_input.records)
            if self._hold:
                self._stand_still(process_records_input.records)
            self._checkpoint(process_records_input.checkpointer)

    def lease_lost(self, lease_lost_input: Any) -> None:
        """Nothing may be written any more."""

    def shard_ended(self, shard_ended_input: Any) -> None:
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input: Any) -> None:
        self._checkpoint(shutdown_requested_input.checkpointer)

    def _stand_still(self, records: Any) -> None:
        if any(int(record.binary_data) >= self._begin for record in records):
            while os.path.exists(self._hold):
                time.sleep(0.05)

    def _checkpoint(self, checkpointer: Any) -> None:
        try:
            checkpointer.checkpoint()
        except CheckpointError as error:
            if error.value != _LOST:  # that word: the lease is another's now
                raise

    def _write(self, records: Any) -> None:
        """In one piece: the file is shared with the processes of the other shards."""
        lines = [
            json.dumps(
                {
                    "worker": self._worker,
                    "at": time.time(),
                    "shard": self._shard,
                    "sequence": record.sequence_number,
                    "sub": record.sub_sequence_number,
                    "key": record.partition_key,
                    "data": record.binary_data.decode("ascii"),
                }
            )
            for record in records
        ]
        os.write(self._output, "".join(f"{line}\n" for line in lines).encode())


if __name__ == "__main__":
    kcl.KCLProcess(Processor(*sys.argv[1:])).run()
