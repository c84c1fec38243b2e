"""Two independent subjects: the leases on shards, and the stores of task assignments.

`leases` (rows and conditional writes), `coordination` (decisions as pure functions) and `agent`
(the process beside the driver) share a DynamoDB lease table with Kinesis Client Library (KCL)
workers. `assignments` stores the assignment of Kafka partitions to tasks outside Spark checkpoints.
`worker_identity` determines the id of a lease owner.
"""

from __future__ import annotations

if __name__ != "spark_ssp.checkpoint":
    raise ImportError("checkpoint has one import name: spark_ssp.checkpoint")
